"""Seeded numbers to mix, and how far apart two samples are."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(1))


def probabilities(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(2)).softmax(-1)


def integers(*shape: int, below: int = 100) -> Tensor:
    return torch.randint(below, shape, generator=seeded(3))


def distance(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Kolmogorov and Smirnov's: the largest difference between the shares of both that lie below a number."""
    numbers = np.concatenate((first, second))
    shares = (np.searchsorted(np.sort(sample), numbers, side="right") / len(sample) for sample in (first, second))
    return float(np.abs(np.subtract(*shares)).max())
