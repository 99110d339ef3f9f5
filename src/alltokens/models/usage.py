"""What the weights of a trained model do not show: how its images are prepared, and what its classes are called."""

from dataclasses import dataclass
from typing import Literal

from alltokens.errors import require

Channels = tuple[float, float, float]
Interpolation = Literal["bilinear", "bicubic"]

SMALLEST, LARGEST = 1e-3, 1e3
"""Numbers beyond which nothing is left of an image; those in use are between 1/255 and 1."""


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
        require_normalization(self.mean, self.std)
        require_crop(self.crop)


def require_normalization(mean: Channels, std: Channels) -> None:
    """Refuse what would leave nothing of an image."""
    require(
        all(abs(value) <= LARGEST for value in mean),
        f"mean must be three numbers from -{LARGEST:g} to {LARGEST:g}; got mean={mean}",
    )
    require(
        all(SMALLEST <= value <= LARGEST for value in std),
        f"std must be three numbers from {SMALLEST:g} to {LARGEST:g}; got std={std}",
    )


def require_crop(crop: float, name: str = "crop") -> None:
    """Refuse what is no share of an image, or so little that nothing is seen."""
    require(SMALLEST <= crop <= 1, f"{name} must be from {SMALLEST:g} to 1; got {name}={crop}")
