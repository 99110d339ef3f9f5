"""The end of augmentation, for a batch on its device: normalised, then rectangles erased; labels do not change."""

from dataclasses import dataclass

import torch
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from alltokens.augment.pipeline import timms_randomness
from alltokens.errors import require
from alltokens.shapes import Float, UInt8


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
        require(min(self.std) > 0, f"std must be above 0; got std={self.std}")
        require(0 <= self.erase <= 1, f"erase must be between 0 and 1; got erase={self.erase}")


def finish(
    images: UInt8[Tensor, "b 3 h w"], config: FinishConfig, generator: torch.Generator
) -> Float[Tensor, "b 3 h w"]:
    """The model's input; the generator decides what is erased, and with which noise."""
    mean, std = (torch.tensor(x, device=images.device)[:, None, None] for x in (config.mean, config.std))
    finished = (images / 255 - mean) / std
    if config.erase == 0:
        return finished
    erasing = RandomErasing(config.erase, mode="pixel", device=images.device)
    devices = [images.device] if images.is_cuda else []
    with timms_randomness(generator), torch.random.fork_rng(devices):
        torch.manual_seed(int(torch.randint(2**32, (), generator=generator)))
        return erasing(finished)
