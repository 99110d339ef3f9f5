"""Values of equal classes added up within a token: what makes a sparse target of many cells' classes."""

import torch
from torch import Tensor
from torch.nn import functional as F

from alltokens.kernels import HAS_TRITON

MOST = 256
"""Values of a token that a kernel compares each with each; more are sorted."""


@torch.library.custom_op("alltokens::merge", mutates_args=())
def merge(ids: Tensor, values: Tensor) -> Tensor:
    """The sum of each id's values at its first place, zero at its others, for each row [b, n, m]; without gradient.

    Always added in the same order, which scatter_add on a GPU does not do.
    """
    return kernel_merge(ids, values) if is_fused(ids, values) else plain_merge(ids, values)


@merge.register_fake
def fake_merge(ids: Tensor, values: Tensor) -> Tensor:
    """As many values."""
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def is_fused(ids: Tensor, values: Tensor) -> bool:
    """Whether the Triton kernel takes these."""
    return values.is_cuda and HAS_TRITON and values.dtype == torch.float32 and ids.shape[-1] <= MOST


def plain_merge(ids: Tensor, values: Tensor) -> Tensor:
    """In torch's own operations: runs of equal ids, once sorted, are summed by doubling."""
    ids, order = ids.sort(dim=-1, stable=True)
    values = values.gather(-1, order)
    step = 1
    while step < ids.shape[-1]:
        same = ids[..., step:] == ids[..., :-step]
        values = values + F.pad(values[..., step:] * same, (0, step))
        step *= 2
    first = F.pad(ids[..., 1:] != ids[..., :-1], (1, 0), value=True)
    return torch.empty_like(values).scatter_(-1, order, values * first)


def kernel_merge(ids: Tensor, values: Tensor) -> Tensor:
    """`plain_merge` as one Triton kernel."""
    from alltokens.labels import merge_kernel

    with torch.cuda.device_of(values):
        return merge_kernel.merge(ids.contiguous(), values.contiguous())
