"""One image of an epoch as the model is to see it, and batches of them, for training and for evaluation."""

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

import torch
from PIL import Image
from torch import Tensor

from alltokens.augment.boxes import cut
from alltokens.augment.pipeline import Augment, AugmentConfig, apply
from alltokens.data.batch import Batch, Sample
from alltokens.data.memory import Memory
from alltokens.data.order import sample_seed
from alltokens.errors import UserError, require
from alltokens.geometry.resample import scales
from alltokens.geometry.view import View
from alltokens.labels.published import Alignment, published_view
from alltokens.labels.store import LabelStore, require_match, the_first
from alltokens.models.usage import require_crop
from alltokens.shapes import Int
from alltokens.sources.decode import LARGEST, Unreadable, tensor_of
from alltokens.sources.source import Source

AugmentedBy = Literal["workers", "device"]
FURTHEST = 64
"""Images in a row that cannot be read: with as many, the data is not there."""


class TrainSamples:
    """Augmented images, each a function of its place in the epoch; with a store, what the annotator says of them.

    `classes` are the model's, by name, and `size` is that of its images; `alignment` says which part of an annotator's
    map goes with a part of the image.
    """

    def __init__(
        self,
        source: Source,
        store: LabelStore | None,
        classes: Sequence[str],
        config: AugmentConfig,
        size: tuple[int, int],
        seed: int,
        alignment: Alignment = "exact",
    ) -> None:
        if store is not None:
            require_match(store, source)
        self.source, self.store, self.seed, self.alignment = source, store, seed, alignment
        self.augment = Augment(config, size)
        self.augmented_by: AugmentedBy = "workers"
        self.classes = class_numbers(source, classes)

    def left_to(self, place: AugmentedBy) -> "TrainSamples":
        """The same samples, resampled and recoloured by workers or, in batches, on the device."""
        others = copy(self)
        others.augmented_by = place
        return others

    def sample(self, epoch: int, place: int, index: int) -> Sample:
        """An image of the source at a place of an epoch; raises Unreadable."""
        opened = self.source.opened(index)
        seed = sample_seed(self.seed, epoch, place)
        draw = self.augment.draw(*opened.size, torch.Generator().manual_seed(seed))
        scale = scale_of(draw.view, opened.scales)
        seen = replace(draw, view=draw.view.coarser(scale))
        if self.augmented_by == "device":
            left, image = cut(seen, opened.pixels(scale))
        else:
            left, image = None, tensor_of(apply(seen, opened.decoded(scale)))
        view = draw.view.normalized()
        if self.alignment == "published":
            view = published_view(view, draw.crop)
        return Sample(image, view, int(self.classes[index]), self.source.keys[index], seed, left)

    def sample_or_earlier(self, epoch: int, place: int, order: Int[Tensor, " images"]) -> Sample:
        """The sample of a place; where its image cannot be read, the nearest before it in the epoch stands in.

        Batches stay whole, and what is seen at a place does not depend on how the epoch is cut into batches.
        """
        tries = min(FURTHEST, len(order))
        for back in range(tries):
            index = int(order[place - back])
            try:
                return self.sample(epoch, place, index)
            except Unreadable as error:
                reason = f"such as '{self.source.keys[index]}' ({error})"
        raise UserError(
            f"{tries} images of '{self.source.name}' in a row cannot be read, {reason}; see that they are there"
        )

    def batch(self, epoch: int, order: Int[Tensor, " images"], places: range, memory: Memory | None = None) -> Batch:
        """The samples of some places of an epoch; maps are read at once."""
        skipped = []

        def samples() -> Iterator[Sample]:
            for place in places:
                sample, key = self.sample_or_earlier(epoch, place, order), self.source.keys[int(order[place])]
                skipped.extend([key] if sample.key != key else [])
                yield sample

        batch = Batch.of(samples(), self.augment.size, None, skipped, memory)
        return batch if self.store is None else replace(batch, score_maps=self.store.read(batch.keys))


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is seen of an image in evaluation: its middle."""

    crop: float = 0.9
    """Share of the image's shorter side that is seen; timm's crop_pct."""
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    """How pixels are resampled."""

    def __post_init__(self) -> None:
        require_crop(self.crop)


class EvaluationSamples:
    """The middle of each image, in the order of the source; `classes` and `size` are the model's."""

    def __init__(self, source: Source, classes: Sequence[str], config: EvaluationConfig, size: tuple[int, int]) -> None:
        self.source, self.config, self.size = source, config, size
        self.classes = class_numbers(source, classes)

    def sample(self, index: int) -> Sample:
        """An image of the source; raises Unreadable."""
        image, view = show_middle(self.source.image(index), self.config, self.size)
        return Sample(tensor_of(image), view.normalized(), int(self.classes[index]), self.source.keys[index], 0)

    def batch(self, places: range, memory: Memory | None = None) -> Batch:
        """The images at these places, without those that cannot be read: another in their place would count twice."""
        skipped = []

        def samples() -> Iterator[Sample]:
            for index in places:
                try:
                    yield self.sample(index)
                except Unreadable:
                    skipped.append(self.source.keys[index])

        return Batch.of(samples(), self.size, None, skipped, memory)


def show_middle(image: Image.Image, config: EvaluationConfig, size: tuple[int, int]) -> tuple[Image.Image, View]:
    """Resized so that the crop is its share of the shorter side, then cropped: timm's transform to the last bit."""
    height, width = size
    least_height, least_width = (math.floor(side / config.crop) for side in size)
    if height == width:
        shorter = min(image.size)
        rows, columns = (int(least_height * side / shorter) for side in (image.height, image.width))
    else:
        scale = min(image.height / least_height, image.width / least_width)
        rows, columns = round(image.height / scale), round(image.width / scale)
    top, left = round((rows - height) / 2), round((columns - width) / 2)
    whole = View.of(image.height, image.width).resize(rows, columns)
    view = whole.crop(top, left, height, width)
    if rows * columns > LARGEST:
        # A thin strip, too large as a whole; by the part, Pillow may take the axes in another order and clip otherwise.
        return view.apply(image, config.interpolation), view
    return whole.apply(image, config.interpolation).crop((left, top, left + width, top + height)), view


def scale_of(view: View, offered: Sequence[int]) -> int:
    """The smallest image in which a view still finds all that it shows; evaluation and annotation take the whole."""
    return max((scale for scale in offered if scale <= min(scales(view))), default=1)


def class_numbers(source: Source, classes: Sequence[str]) -> Int[Tensor, " images"]:
    """The number that each image's class has among the model's."""
    place = {name: number for number, name in enumerate(classes)}
    unknown = [name for name in source.classes if name not in place]
    require(
        not unknown,
        f"'{source.name}' has {len(unknown):,} classes that are not among the model's {len(classes):,}, "
        f"{the_first(unknown)}; the model's are {the_first(classes)}",
    )
    # Images without a class have the label -1, and so the last number.
    numbers = torch.tensor([*(place[name] for name in source.classes), -1])
    return numbers[torch.tensor(list(source.labels))]
