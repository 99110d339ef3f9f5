"""Small label stores for the tests, and what lies in a folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from alltokens.labels.keys import keys_sha256
from alltokens.labels.meta import Plan
from alltokens.labels.record import Records, encode
from alltokens.labels.score_map import ScoreMap, ScoreMaps
from alltokens.labels.shards import begin, finish, finished_shards, write_shard
from alltokens.sources.source import Source

CLASSES = tuple(f"class{number}" for number in range(7))
KEYS = [f"class{number % 7}/image {number}.jpg" for number in range(11)]
GRIDS = [(2, 3), (3, 2), (1, 6), (2, 2), (1, 1)]
BROKEN = {4: "the image is cut off", 10: "it is no image"}
"""Rows without labels."""


def plan_for(keys: Sequence[str] = KEYS, **changes: object) -> Plan:
    """Three classes of seven on at most six cells, four records a shard."""
    plan = Plan(
        annotator="tiny",
        weights_sha256="0" * 64,
        classes=CLASSES,
        top_k=3,
        cells=6,
        fit="rectangle",
        image_size=(64, 64),
        flip=False,
        decoder="pillow",
        exif="applied",
        images=len(keys),
        keys_sha256=keys_sha256(keys),
        records_per_shard=4,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def dense_of(row: int, classes: int = len(CLASSES)) -> Tensor:
    """What the annotator says of an image, [classes, h, w]."""
    return 4 * torch.randn(classes, *GRIDS[row % len(GRIDS)], generator=torch.Generator().manual_seed(row))


def map_of(row: int, top_k: int = 3) -> ScoreMap:
    """The score map of an image."""
    return ScoreMap.from_dense(dense_of(row), top_k)


def shard_of(plan: Plan, number: int) -> tuple[Records, dict[int, str]]:
    """A shard's records and its rows without labels."""
    rows = plan.rows_of(number)
    records = np.zeros(len(rows), plan.dtype)
    for place, row in enumerate(rows):
        if row not in BROKEN:
            records[place] = encode(ScoreMaps.stack([map_of(row)]), plan.dtype)[0]
    return records, {place: BROKEN[row] for place, row in enumerate(rows) if row in BROKEN}


def write_store(folder: Path, plan: Plan | None = None, keys: Sequence[str] = KEYS) -> Path:
    """A whole store, or what is missing of it."""
    plan = plan or plan_for(keys)
    begin(folder, plan)
    for number in set(range(plan.shards)) - finished_shards(folder, plan):
        write_shard(folder, number, *shard_of(plan, number))
    finish(folder, plan, keys)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def no_image(index: int) -> Image.Image:
    """For sources whose images nobody asks for."""
    raise AssertionError(index)


def source_of(keys: Sequence[str] = KEYS, classes: Sequence[str] = CLASSES) -> Source:
    """A data set with these keys."""
    return Source("photos", keys, [0] * len(keys), classes, no_image)
