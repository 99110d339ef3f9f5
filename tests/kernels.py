"""How kernels are tested that are written in Triton."""

import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]


def run_with_kernels(test: str) -> None:
    """The checks in the main part of a test file, on a GPU where there is one, or else by Triton's interpreter.

    A process of its own: Triton reads the variable once, and cannot compile functions that check their shapes.
    """
    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    environment = {**os.environ, **interpreted, "JAXTYPING_DISABLE": "1"}
    subprocess.run([sys.executable, "-m", test], cwd=ROOT, env=environment, check=True)
