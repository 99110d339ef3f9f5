"""Whether there are kernels of our own, which Triton compiles for GPUs."""

from importlib.util import find_spec

HAS_TRITON = find_spec("triton") is not None
