"""What the weights of a trained model do not show: how its images are prepared, and what its classes are called."""

from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from alltokens.errors import require

Channels = tuple[float, float, float]
Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True, kw_only=True)
class Usage:
    """How a model is used: as it was trained; checked, because it may come from a file of somebody else's."""

    mean: Channels
    """Of each channel, as a share of white; images are normalised with it."""
    std: Channels
    """Standard deviation of each channel."""
    crop: float
    """Share of an image's shorter side that is seen in evaluation."""
    interpolation: Interpolation
    """How pixels are resampled in evaluation."""
    classes: tuple[str, ...]
    """Names of the model's classes, in the order of its answers."""

    def __post_init__(self) -> None:
        require(all(map(isfinite, self.mean)), f"mean must be three finite numbers; got mean={self.mean}")
        require(
            all(0 < value < inf for value in self.std), f"std must be three finite numbers above 0; got std={self.std}"
        )
        require(0 < self.crop <= 1, f"crop must be above 0 and at most 1; got crop={self.crop}")
