"""What the loader hands on: the images of a batch with all that objectives ask about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from alltokens.labels.score_map import ScoreMaps
from alltokens.shapes import Float, Int, UInt8


@dataclass(frozen=True)
class Sample:
    """One image as the model is to see it."""

    image: UInt8[Tensor, "3 h w"]
    view: Float[Tensor, "2 3"]
    number: int
    """The model's class."""
    key: str
    seed: int


@dataclass(frozen=True, eq=False)
class Batch:
    """Images that are resampled and recoloured, not yet normalised or erased."""

    images: UInt8[Tensor, "b 3 h w"]
    """Pixels."""
    classes: Int[Tensor, " b"]
    """The model's class of each image, -1 where it has none."""
    score_maps: ScoreMaps | None
    """What the annotator says of each image, where that is trained on."""
    views: Float[Tensor, "b 2 3"]
    """What is seen of each image: maps from the canvas to the image, each taken as the unit square."""
    keys: tuple[str, ...]
    """Which images they are."""
    seeds: Int[Tensor, " b"]
    """For what is still random about each sample, erasing and mixing; 0 in evaluation."""
    skipped: tuple[str, ...] = ()
    """Images that should be here and cannot be read."""

    @staticmethod
    def of(
        samples: Sequence[Sample], size: tuple[int, int], score_maps: ScoreMaps | None, skipped: Sequence[str]
    ) -> "Batch":
        """Samples of this height and width; there may be none."""
        images, views = torch.empty(len(samples), 3, *size, dtype=torch.uint8), torch.empty(len(samples), 2, 3)
        for row, sample in enumerate(samples):
            images[row], views[row] = sample.image, sample.view
        return Batch(
            images=images,
            classes=torch.tensor([sample.number for sample in samples], dtype=torch.int64),
            score_maps=score_maps,
            views=views,
            keys=tuple(sample.key for sample in samples),
            seeds=torch.tensor([sample.seed for sample in samples], dtype=torch.int64),
            skipped=tuple(skipped),
        )

    def __len__(self) -> int:
        return len(self.keys)

    def to(self, device: torch.device | str) -> "Batch":
        """The same on another device; copies from pinned memory are not waited for."""
        waits = torch.device(device).type == "cpu"
        return self.with_each(lambda part: part.to(device, non_blocking=not waits))

    def pin_memory(self) -> "Batch":
        """The loader calls it so that copies to a GPU need not be waited for."""
        return self.with_each(lambda part: part.pin_memory())

    def with_each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The same with each tensor changed."""
        images, classes, views, seeds = map(change, (self.images, self.classes, self.views, self.seeds))
        maps = self.score_maps
        if maps is not None:
            maps = ScoreMaps(*(change(getattr(maps, field.name)) for field in fields(maps)))
        return Batch(images, classes, maps, views, self.keys, seeds, self.skipped)
