"""Reading a label store: score maps by key, from memory-mapped shards."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from alltokens.errors import UserError, require
from alltokens.files import checksum_path, sha256
from alltokens.labels.keys import INDEX_DTYPE, Lookup, unpack_keys
from alltokens.labels.meta import (
    INDEX,
    KEYS,
    META,
    UNREADABLE,
    Meta,
    Progress,
    damaged,
    npy_header,
    npy_size,
    read_json,
    read_meta,
    shard_name,
    silent,
)
from alltokens.labels.record import Records, decode_records, first_damaged
from alltokens.labels.score_map import ScoreMap, ScoreMaps
from alltokens.sources.decode import DECODER, EXIF
from alltokens.sources.source import Source


class LabelStore:
    """Score maps of a data set's images by key; goes to other processes as its path."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.meta = read_meta(self.path)
        self.plan = self.meta.plan
        self.dtype = self.plan.dtype
        self.view = torch.tensor(self.plan.view)
        require_layout(self.path, self.meta)
        index = np.fromfile(self.path / INDEX, INDEX_DTYPE, offset=len(npy_header(INDEX_DTYPE, len(self))))
        if int(index["row"].max()) >= len(self):
            raise damaged(self.path / INDEX, f"it names row {int(index['row'].max())} of {len(self)}")
        self.lookup = Lookup(index)
        self.shards: dict[int, NDArray[np.uint8]] = {}

    def __reduce__(self) -> tuple[type["LabelStore"], tuple[Path]]:
        return LabelStore, (self.path,)

    def __len__(self) -> int:
        return self.plan.images

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self.lookup([key])[0] >= 0)

    def __getitem__(self, key: str) -> ScoreMap:
        """The score map of one image, checked."""
        maps = self.read([key])
        if not int(maps.grids[0, 0]):
            reason = self.unreadable.get(key, "no reason is given")
            raise UserError(f"label store '{self.path}' has no labels for '{key}': {reason}")
        try:
            return ScoreMap(maps.classes[0], maps.logits[0], maps.normalizer[0], maps.views[0])
        except UserError as error:
            raise UserError(f"{self.damaged_record(key)} ({error})") from error

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.plan.classes

    @cached_property
    def unreadable(self) -> dict[str, str]:
        """Keys of images without labels, and why."""
        path = self.path / UNREADABLE
        try:
            content = read_json(path)
        except ValueError as error:
            raise damaged(path, error) from error
        if not isinstance(content, dict) or not all(isinstance(reason, str) for reason in content.values()):
            raise damaged(path, "it must be a mapping of keys to reasons")
        return content

    def keys(self) -> list[str]:
        """All keys, in the order of the data set."""
        path = self.path / KEYS
        try:
            return unpack_keys(path.read_bytes(), len(self))
        except ValueError as error:
            raise damaged(path, error) from error

    def read(self, keys: Sequence[str]) -> ScoreMaps:
        """The score maps of a batch; images without labels have a grid of 0 x 0."""
        rows = self.lookup(keys)
        if not len(keys):
            raise UserError("give at least one key to read labels for")
        if int(rows.min()) < 0:
            unknown = [key for key, row in zip(keys, rows, strict=True) if row < 0]
            raise UserError(
                f"label store '{self.path}' has no image '{unknown[0]}' among its {len(self):,}, "
                f"whose keys are such as '{self.keys()[0]}'"
            )
        records = self.records(rows)
        bad = first_damaged(records, len(self.classes))
        if bad is not None:
            raise UserError(self.damaged_record(keys[bad]))
        return decode_records(records, self.view)

    def records(self, rows: NDArray[np.int64]) -> Records:
        """Copies of the records in these rows."""
        found = np.empty((len(rows), self.dtype.itemsize), np.uint8)
        shards, places = np.divmod(rows, self.plan.records_per_shard)
        for number, (shard, place) in enumerate(zip(shards.tolist(), places.tolist(), strict=True)):
            found[number] = self.shard(shard)[place]
        return found.view(self.dtype)[:, 0]

    def shard(self, number: int) -> NDArray[np.uint8]:
        """The bytes of a shard's records, mapped into memory when they are first asked for."""
        if number not in self.shards:
            path, count = self.path / shard_name(number), self.plan.records_of(number)
            try:
                # Python's own mapping keeps the file open, and a store may have more shards than files may be open.
                mapped = torch.from_file(str(path), False, npy_size(self.dtype, count), dtype=torch.uint8)
            except RuntimeError as error:
                raise damaged(path, "it has changed since the store was opened") from error
            self.shards[number] = mapped.numpy()[-count * self.dtype.itemsize :].reshape(count, -1)
        return self.shards[number]

    def damaged_record(self, key: str) -> str:
        """The sentence for a record that no writer makes."""
        return (
            f"label store '{self.path}' has a damaged record for '{key}'; 'alltokens labels verify' finds what else is"
        )


def require_layout(folder: Path, meta: Meta) -> None:
    """Every file is there, and arrays have the size and header that the plan gives them."""
    plan = meta.plan
    arrays = {INDEX: (INDEX_DTYPE, plan.images)}
    arrays |= {shard_name(number): (plan.dtype, plan.records_of(number)) for number in range(plan.shards)}
    for name in meta.sums:
        path = folder / name
        if not path.is_file():
            raise damaged(path, "it does not exist")
        if name in arrays:
            dtype, count = arrays[name]
            header, size, found = npy_header(dtype, count), npy_size(dtype, count), path.stat().st_size
            if found != size:
                raise damaged(path, f"it has {found:,} bytes, not {size:,}")
            with path.open("rb") as file:
                if file.read(len(header)) != header:
                    raise damaged(path, f"it does not begin as an array of {count:,} records")


def verify(folder: str | Path, progress: Progress = silent) -> list[str]:
    """A sentence for each damaged, missing or extra file of a store; none where it is whole."""
    folder = Path(folder)
    try:
        meta = read_meta(folder)
    except UserError as error:
        return [str(error)]
    damage = []
    for done, (name, expected) in enumerate(meta.sums.items()):
        progress(done, len(meta.sums))
        if not (folder / name).is_file():
            damage.append(f"'{folder / name}' does not exist")
        elif sha256(folder / name) != expected:
            damage.append(f"'{folder / name}' is damaged: its SHA-256 is not the one in '{META}'")
    progress(len(meta.sums), len(meta.sums))
    known = {folder / name for name in (*meta.sums, META)} | {checksum_path(folder / META)}
    extra = sorted(path for path in folder.rglob("*") if path not in known and path != folder / "shards")
    return [*damage, *(f"'{path}' is no file of this store" for path in extra)]


def require_match(store: LabelStore, source: Source) -> None:
    """The store has labels for each image of the data set, which is decoded as it was when they were made."""
    require_same_rows(store, source)
    missing = [source.keys[place] for place in np.flatnonzero(store.lookup(source.keys) < 0).tolist()]
    if missing:
        raise UserError(
            f"label store '{store.path}' lacks {len(missing):,} of the {len(source):,} images of '{source.name}', "
            f"{the_first(missing)}; annotate this data set"
        )
    known = set(store.classes)
    unnamed = [name for name in source.classes if name not in known]
    if unnamed:
        raise UserError(
            f"label store '{store.path}' does not name {len(unnamed):,} of the {len(source.classes):,} classes of "
            f"'{source.name}', {the_first(unnamed)}; annotate with a class map"
        )
    for name, now in (("decoder", DECODER), ("exif", EXIF)):
        there: Any = getattr(store.plan, name)
        if there not in ("", now):
            raise UserError(
                f"label store '{store.path}' was made with {name} '{there}', and this is '{now}'; annotate again"
            )


def require_same_rows(store: LabelStore, source: Source) -> None:
    """Row number 7 is the same image in both, as far as that is known."""
    there = store.plan
    require(
        "" in (there.split, source.split) or there.split == source.split,
        f"label store '{store.path}' was made of split '{there.split}', and this is split '{source.split}' of "
        f"'{source.name}'; annotate this one",
    )
    require(
        "" in (there.labels_sha256, source.labels_sha256) or there.labels_sha256 == source.labels_sha256,
        f"label store '{store.path}' was made of rows with other classes, or in another order, than those of "
        f"'{source.name}', whose images are known by row number alone; annotate this data set",
    )


def the_first(words: Sequence[str]) -> str:
    """`such as 'a', 'b', 'c'`."""
    return f"such as {', '.join(repr(word) for word in words[:3])}"
