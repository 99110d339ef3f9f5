"""A small data set in memory, a label store for it, and batches made comparable."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.batch import Batch
from alltokens.data.samples import TrainSamples
from alltokens.labels.store import LabelStore
from alltokens.sources.source import Source

from ..labels.stores import plan_for, write_store
from ..sources.pictures import encoded, noise

CLASSES = ("class5", "class1")
"""In another order than the store has them."""
SIZE = (16, 24)
AUGMENT = AugmentConfig(policy="rand-m9-n3-p0.7-mstd0.5", color_jitter=0.3)


def keys_of(count: int) -> list[str]:
    return [f"{CLASSES[number % 2]}/{number:02}.png" for number in range(count)]


@dataclass(frozen=True)
class Pictures:
    """Noise of several shapes; some cannot be read."""

    broken: Sequence[int]

    def __call__(self, index: int) -> bytes:
        height, width = [(12, 20), (20, 12), (15, 15)][index % 3]
        return b"no image" if index in self.broken else encoded(noise(height, width, seed=index))


def source_of(count: int = 11, broken: Sequence[int] = ()) -> Source:
    labels = [-1 if number == 3 else number % 2 for number in range(count)]
    return Source("photos", keys_of(count), labels, CLASSES, Pictures(broken))


def store_for(source: Source, folder: Path) -> LabelStore:
    return LabelStore(write_store(folder, plan_for(source.keys), source.keys))


def samples_of(
    source: Source,
    folder: Path | None = None,
    seed: int = 7,
    augment: AugmentConfig = AUGMENT,
    size: tuple[int, int] = SIZE,
) -> TrainSamples:
    """With labels where there is a folder to write them to."""
    store = None if folder is None else store_for(source, folder)
    return TrainSamples(source, store, source.classes if store is None else store.classes, augment, size, seed)


def rows_of(batch: Batch) -> list[tuple]:
    """All that a batch says of each image, score maps without the padding that others of the batch cause."""
    return [
        (
            *(part[row].tolist() for part in (batch.images, batch.classes, batch.views, batch.seeds)),
            batch.keys[row],
            *map_of(batch, row),
        )
        for row in range(len(batch))
    ]


def map_of(batch: Batch, row: int) -> list:
    maps = batch.score_maps
    if maps is None:
        return []
    h, w = maps.grids[row].tolist()
    grids = [part[row, ..., :h, :w].tolist() for part in (maps.classes, maps.logits, maps.normalizer)]
    return [(h, w), *grids, maps.views[row].tolist()]


def fields_of(batch: Batch) -> list:
    """Every field, as it is."""
    maps = batch.score_maps
    parts: list[Tensor] = [batch.images, batch.classes, batch.views, batch.seeds]
    if maps is not None:
        parts += [maps.classes, maps.logits, maps.normalizer, maps.views, maps.grids]
    return [batch.keys, batch.skipped, *((part.dtype, part.tolist()) for part in parts)]


def same_batches(ours: Sequence[Batch], theirs: Sequence[Batch]) -> bool:
    return [*map(fields_of, ours)] == [*map(fields_of, theirs)]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
