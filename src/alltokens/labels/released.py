"""Labels as LV-ViT's were released, a .pt file an image, to a label store and back."""

import math
import os
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from alltokens.errors import UserError
from alltokens.files import write_atomically
from alltokens.labels.keys import keys_sha256
from alltokens.labels.meta import Plan, Progress, silent
from alltokens.labels.record import Records, encode
from alltokens.labels.score_map import ScoreMap, ScoreMaps
from alltokens.labels.shards import begin, finish, finished_shards, make_folder, write_shard
from alltokens.labels.store import LabelStore
from alltokens.sources.decode import ENDINGS
from alltokens.sources.source import Source, text

ANNOTATOR = "released files"
RECORDS_PER_SHARD = 1024
MOST_CLASSES = 2048
"""Ids are stored as float16, which has every integer up to here."""
TOGETHER = 256
"""Images read at once."""


class Broken(Exception):
    """Why a file holds no labels, in a few words."""


def from_released(
    labels: str | Path,
    store: str | Path,
    classes: Sequence[str],
    source: Source | None = None,
    progress: Progress = silent,
) -> None:
    """Make a store of `labels/<class>/<stem>.pt`; run again, it goes on where it was interrupted.

    Keys are the source's where one is given, else the paths without `.pt`.
    """
    labels, store = Path(labels), Path(store)
    files = released_files(labels, source)
    top_k, *grid = first_shape(labels, files.values(), len(classes))
    keys = list(files)
    plan = Plan(
        annotator=ANNOTATOR,
        weights_sha256="",
        classes=tuple(classes),
        top_k=top_k,
        cells=math.prod(grid),
        fit="square",
        image_size=(0, 0),
        flip=False,
        decoder="",
        exif="",
        images=len(keys),
        keys_sha256=keys_sha256(keys),
        split="" if source is None else source.split,
        labels_sha256="" if source is None else source.labels_sha256,
        records_per_shard=RECORDS_PER_SHARD,
    )
    begin(store, plan)
    done = finished_shards(store, plan)
    for number in range(plan.shards):
        if number not in done:
            write_shard(store, number, *released_shard([files[keys[row]] for row in plan.rows_of(number)], plan))
        progress(number + 1, plan.shards)
    finish(store, plan, keys)


def to_released(store: str | Path, labels: str | Path, progress: Progress = silent) -> None:
    """Write `labels/<class>/<stem>.pt` for every image that has labels."""
    opened, labels = LabelStore(store), Path(labels)
    if len(opened.classes) > MOST_CLASSES:
        raise UserError(
            f"label store '{opened.path}' has {len(opened.classes):,} classes; "
            f"released files tell no more than {MOST_CLASSES:,} apart"
        )
    keys = opened.keys()
    paths = [labels / f"{stem}.pt" for stem in stems_of(keys)]
    for folder in {path.parent for path in paths}:
        make_folder(folder)
    for start in range(0, len(keys), TOGETHER):
        maps = opened.read(keys[start : start + TOGETHER])
        for place, (h, w) in enumerate(maps.grids.tolist()):
            if h:
                both = torch.stack((maps.logits[place, :, :h, :w], maps.classes[place, :, :h, :w])).half()
                write_atomically(paths[start + place], partial(torch.save, both))
        progress(min(start + TOGETHER, len(keys)), len(keys))


def released_files(labels: Path, source: Source | None) -> dict[str, Path]:
    """The label file of each key; it need not exist where the keys are a source's."""
    if not labels.is_dir():
        raise UserError(f"there is no folder '{labels}' of released labels")
    if source is not None:
        stems = stems_of(source.keys)
        return {key: labels / f"{stem}.pt" for key, stem in zip(source.keys, stems, strict=True)}
    found = sorted(path.relative_to(labels).as_posix() for path in labels.rglob("*.pt"))
    return {text(os.fsencode(name)).removesuffix(".pt"): labels / name for name in found}


def stems_of(keys: Sequence[str]) -> list[str]:
    """Keys without their endings, as released files are named; refused where that leaves the folder or joins two."""
    stems: dict[str, str] = {}
    for key in keys:
        path = PurePosixPath(key)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise UserError(f"key '{key}' does not name a file within a folder, as released labels need")
        # Only what is an image's ending: `a.1` may itself be what is left of `a.1.jpg`.
        stem = (path.with_suffix("") if path.suffix.lower() in ENDINGS else path).as_posix()
        if stem in stems:
            raise UserError(
                f"keys '{stems[stem]}' and '{key}' share the released file '{stem}.pt'; rename one of the images"
            )
        stems[stem] = key
    return list(stems)


def first_shape(labels: Path, files: Iterable[Path], classes: int) -> tuple[int, ...]:
    """Classes a cell, rows and columns of the first map that can be read; the released ones have one shape."""
    for path in files:
        with suppress(Broken):
            return tuple(read_released(path, classes).logits.shape)
    raise UserError(
        f"there is no released label file in '{labels}' that can be read; give a folder of <class>/<stem>.pt"
    )


def released_shard(paths: Sequence[Path], plan: Plan) -> tuple[Records, dict[int, str]]:
    """Records of these files, and why some have no labels."""
    records, broken = np.zeros(len(paths), plan.dtype), {}
    maps: dict[int, ScoreMap] = {}
    for row, path in enumerate(paths):
        try:
            score_map = read_released(path, len(plan.classes))
            k, h, w = score_map.logits.shape
            if k != plan.top_k or h * w > plan.cells:
                raise Broken(f"the label file has {k} classes on {h} x {w} cells, unlike the first one")
            maps[row] = score_map
        except Broken as error:
            broken[row] = str(error)
    if maps:
        records[list(maps)] = encode(ScoreMaps.stack(list(maps.values())), plan.dtype)
    return records, broken


def read_released(path: Path, classes: int) -> ScoreMap:
    """One file's map; its normalizer is not in it, so it is that of zeros in all classes that are not named."""
    if not path.is_file():
        raise Broken("there is no label file for it")
    try:
        with warnings.catch_warnings(), path.open("rb") as file:
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch raise anything, KeyError and MemoryError included
        raise Broken("the label file is damaged") from error
    if not isinstance(content, Tensor) or content.ndim != 4 or len(content) != 2 or not content.is_floating_point():
        raise Broken("the label file holds no floats [2, k, h, w]")
    logits, ids = content.float()
    if not bool((ids == ids.round()).all()):
        raise Broken("the label file has class ids that are no integers")
    if ids.numel() and int(ids.max()) >= classes:
        raise UserError(f"'{path}' names class {int(ids.max())} and there are {classes}; give the names of all classes")
    rest = torch.full_like(logits[:1], classes - len(logits)).log()
    try:
        return ScoreMap(ids.int(), logits, torch.cat((logits, rest)).logsumexp(0))
    except UserError as error:
        raise Broken(f"the label file is damaged: {error}") from error
