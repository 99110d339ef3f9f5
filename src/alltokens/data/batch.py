"""What the loader hands on: the images of a batch with all that objectives ask about them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from alltokens.augment.boxes import Boxes
from alltokens.augment.pipeline import Draw
from alltokens.data.memory import Memory
from alltokens.labels.score_map import ScoreMaps
from alltokens.shapes import Float, Int, UInt8


@dataclass(frozen=True)
class Sample:
    """One image as the model is to see it."""

    image: UInt8[Tensor, "3 h w"]
    """Pixels; where a draw is left to the device, of the box that it can see."""
    view: Float[Tensor, "2 3"]
    number: int
    """The model's class."""
    key: str
    seed: int
    draw: Draw | None = None
    """What is still to be done to the image."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Images that are resampled and recoloured, not yet normalised or erased."""

    images: UInt8[Tensor, "b 3 h w"]
    """Pixels; none while there are boxes."""
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
    boxes: Boxes | None = None
    """What is to become the images, where that is left to the device."""

    @staticmethod
    def of(
        samples: Iterable[Sample],
        size: tuple[int, int],
        score_maps: ScoreMaps | None,
        skipped: Sequence[str],
        memory: Memory | None = None,
    ) -> "Batch":
        """Samples of this height and width; there may be none. What is skipped may become known with the samples."""
        memory = Memory() if memory is None else memory
        views, numbers, keys, seeds, draws = [], [], [], [], []
        for sample in samples:
            memory.add(sample.image)
            views.append(sample.view)
            numbers.append(sample.number)
            keys.append(sample.key)
            seeds.append(sample.seed)
            draws += [] if sample.draw is None else [sample.draw]
        pixels = memory.taken()
        boxes = Boxes(pixels, tuple(draws)) if draws else None
        images = pixels.new_empty(len(keys), 0, 0, 3) if draws else pixels.view(len(keys), *size, 3)
        return Batch(
            images=images.permute(0, 3, 1, 2),
            classes=torch.tensor(numbers, dtype=torch.int64),
            score_maps=score_maps,
            views=torch.stack(views) if views else torch.empty(0, 2, 3),
            keys=tuple(keys),
            seeds=torch.tensor(seeds, dtype=torch.int64),
            skipped=tuple(skipped),
            boxes=boxes,
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
        boxes = None if self.boxes is None else Boxes(change(self.boxes.pixels), self.boxes.draws)
        return Batch(images, classes, maps, views, self.keys, seeds, self.skipped, boxes)

    def augmented(self) -> "Batch":
        """The same with all images made, on the device that it is on."""
        return self if self.boxes is None else replace(self, images=self.boxes.augmented(), boxes=None)
