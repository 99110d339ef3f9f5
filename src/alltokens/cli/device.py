"""Where a command computes."""

import os

import torch


def own_device() -> torch.device:
    """The GPU that torchrun gave this process, or the only one, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
