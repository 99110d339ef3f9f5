"""What a label store says of itself: what was planned before the first image, and what came of it."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from alltokens import files
from alltokens.errors import UserError, require
from alltokens.geometry.view import Matrix
from alltokens.labels.record import record_dtype
from alltokens.plain import from_plain, to_plain

FORMAT = 1
META, UNFINISHED = "meta.json", "unfinished.json"
KEYS, INDEX, UNREADABLE = "keys.zz", "index.npy", "unreadable.json"

Progress = Callable[[int, int], object]
"""Called with how much of the work is done and how much there is."""
Content = TypeVar("Content")


def silent(done: int, total: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is known of a label store before the first image is looked at."""

    format: int = FORMAT
    """Version of the layout."""
    annotator: str
    """Name of the model that labels the images."""
    weights_sha256: str
    """Of the annotator's tensors; empty where they are not known."""
    classes: tuple[str, ...]
    """Names of the classes that ids stand for."""
    class_map: str = ""
    """SHA-256 of the map from the annotator's classes to these; empty where they are the annotator's own."""
    top_k: int
    """Classes kept in a cell."""
    cells: int
    """Cells of the largest grid."""
    fit: Literal["square", "rectangle"]
    """What whole images were resized to."""
    image_size: tuple[int, int]
    """Height and width that the annotator saw, of about this area where images were resized to rectangles; 0 x 0 where
    it is not known."""
    flip: bool
    """Whether the logits of the mirrored image were averaged in."""
    view: Matrix = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
    """Map from what the annotator saw to the image, each taken as the unit square."""
    decoder: str
    """What decoded the images; empty where it is not known."""
    exif: str
    """What was done with the orientation tag; empty where it is not known."""
    images: int
    """Images of the data set, readable or not."""
    keys_sha256: str
    """Of their keys."""
    split: str = ""
    """Which split they are, where their keys are row numbers; empty where it is not known."""
    labels_sha256: str = ""
    """Of the classes of all rows of that split; empty where they are not known."""
    records_per_shard: int
    """Images of a shard; the last one may have fewer."""

    def __post_init__(self) -> None:
        require(self.format == FORMAT, f"the store has format {self.format}, this version reads {FORMAT}")
        for name, most in (("images", 2**32 - 1), ("records_per_shard", 2**32 - 1), ("cells", 65_536)):
            value = getattr(self, name)
            require(1 <= value <= most, f"{name} must be between 1 and {most:,}; got {value}")
        most = min(len(self.classes), 1024)
        require(1 <= self.top_k <= most, f"top_k must be between 1 and {most}; got {self.top_k}")
        numbers = (*self.view[0], *self.view[1])
        (a, b, _), (c, d, _) = self.view
        good = all(map(math.isfinite, numbers)) and a * d != b * c
        require(good, f"the view must be finite and invertible; got {self.view}")

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Layout of its records."""
        return record_dtype(len(self.classes), self.top_k, self.cells)

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return -(-self.images // self.records_per_shard)

    def records_of(self, shard: int) -> int:
        """How many records a shard has."""
        return min(self.records_per_shard, self.images - shard * self.records_per_shard)

    def rows_of(self, shard: int) -> range:
        """The images that a shard holds."""
        start = shard * self.records_per_shard
        return range(start, start + self.records_of(shard))


@dataclass(frozen=True)
class StoredFile:
    """One file of a store."""

    name: str
    """Relative to the store's folder."""
    sha256: str
    """Of its content."""


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What a finished label store says of itself."""

    plan: Plan
    """What was planned."""
    unreadable: int
    """Images without labels because they could not be read."""
    files: tuple[StoredFile, ...]
    """Every other file, in the order of their names."""

    def __post_init__(self) -> None:
        # Counted first: a plan may claim more shards than there is memory for their names.
        expected = self.plan.shards + 3
        good = len(self.files) == expected and [file.name for file in self.files] == expected_files(self.plan)
        require(good, f"it must list the {expected:,} files of a store of {self.plan.images:,} images")

    @property
    def sums(self) -> dict[str, str]:
        """SHA-256 by name."""
        return {file.name: file.sha256 for file in self.files}


def shard_name(number: int) -> str:
    """Where a shard lies in the folder."""
    return f"shards/{number:05}.npy"


def expected_files(plan: Plan) -> list[str]:
    """Every file of a finished store but meta.json and its checksum."""
    return sorted([KEYS, INDEX, UNREADABLE, *map(shard_name, range(plan.shards))])


def npy_header(dtype: np.dtype[Any], count: int) -> bytes:
    """The start of a .npy file of version 1.0, written here so that no release of NumPy can change a byte of it."""
    text = str({"descr": dtype.descr, "fortran_order": False, "shape": (count,)})
    padding = -(len(text) + 11) % 64
    return b"\x93NUMPY\x01\x00" + (len(text) + padding + 1).to_bytes(2, "little") + f"{text}{' ' * padding}\n".encode()


def npy_size(dtype: np.dtype[Any], count: int) -> int:
    """Bytes of such a file."""
    return len(npy_header(dtype, count)) + count * dtype.itemsize


def write_json(path: Path, content: object, checksum: bool = False) -> None:
    """Plain values, the same bytes each time."""
    text = json.dumps(content, indent=1) + "\n"
    files.write_atomically(path, lambda file: file.write(text.encode()), checksum)


def read_json(path: Path) -> Any:
    """What a JSON file of a store holds; a ValueError where it is none."""
    try:
        return json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_config(config_class: type[Content], path: Path) -> Content:
    """A Plan or Meta that was written as JSON."""
    try:
        content = read_json(path)
        plan = content.get("plan", content) if isinstance(content, dict) else None
        found = plan.get("format", FORMAT) if isinstance(plan, dict) else FORMAT
        # Before all else, because a later format may well have other keys.
        require(found == FORMAT, f"the store has format {found}, this version reads {FORMAT}")
        return from_plain(config_class, content)
    except (ValueError, OverflowError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: object) -> UserError:
    """The sentence for a file of a store that cannot be read."""
    return UserError(f"'{path}' cannot be used: {str(error).strip() or type(error).__name__}")


def write_meta(folder: Path, meta: Meta) -> None:
    """With its checksum: a store is what these two say."""
    write_json(folder / META, to_plain(meta), checksum=True)


def read_meta(folder: Path) -> Meta:
    """Of a finished store, its checksum right."""
    if not folder.is_dir():
        raise UserError(f"there is no label store '{folder}'")
    if (folder / UNFINISHED).exists():
        raise UserError(f"label store '{folder}' is unfinished; run the same command again to finish it")
    if not (folder / META).exists() and not (folder / "shards").exists():
        raise UserError(f"'{folder}' is no label store: it has no {META}")
    return checked_meta(folder)


def checked_meta(folder: Path) -> Meta:
    """The content of meta.json, if it is what its checksum was taken of."""
    files.verify(folder / META)
    return read_config(Meta, folder / META)


def differences(ours: Plan, theirs: Plan) -> list[str]:
    """`top_k is 5 there and 3 now` for each field that differs."""
    pairs = {field.name: (getattr(ours, field.name), getattr(theirs, field.name)) for field in fields(Plan)}
    return [f"{name} is {short(a)} there and {short(b)} now" for name, (a, b) in pairs.items() if a != b]


def short(value: object) -> str:
    """A value as a sentence can hold it."""
    text = repr(value)
    return f"{text[:60]}... ({len(value)} in all)" if isinstance(value, tuple) and len(text) > 80 else text
