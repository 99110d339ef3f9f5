"""What is asked of the end of augmentation: images normalised, then rectangles erased; labels do not change."""

from dataclasses import dataclass

from alltokens.errors import require
from alltokens.models.usage import require_normalization


@dataclass(frozen=True, kw_only=True)
class FinishConfig:
    """How pixels become the model's input; names and defaults are timm's."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean of each channel, as a share of white."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel."""
    erase: float = 0.25
    """Chance to fill a rectangle of an image with noise."""

    def __post_init__(self) -> None:
        require_normalization(self.mean, self.std)
        require(0 <= self.erase <= 1, f"erase must be between 0 and 1; got erase={self.erase}")
