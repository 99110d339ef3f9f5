"""A Hugging Face data set on disk: what `save_to_disk` wrote, or parquet files as the Hub has them."""

import os
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import escape, glob
from pathlib import Path, PurePath
from typing import Any

from alltokens.errors import UserError, require
from alltokens.sources.decode import said_by
from alltokens.sources.source import Computed, Source, sha256_of

SAVED = (("dataset_dict.json",), ("dataset_info.json", "state.json"))
"""Files that `save_to_disk` leaves for several splits, and for one data set."""
SHARD = re.compile(r"(.+?)-\d+-of-\d+(-[0-9a-f]+)?")


@dataclass(frozen=True)
class ReadRow:
    """The stored bytes of one row's image."""

    rows: Any
    column: str
    folder: Path
    """Of the data set: no row may name a file elsewhere."""

    def __call__(self, index: int) -> bytes:
        image = self.rows[index][self.column]
        if image is None:
            raise OSError("the row has no image")
        if image["bytes"] is not None:
            return image["bytes"]
        path = Path(self.folder, image["path"]).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise OSError("its file lies outside of the data set's folder")
        return path.read_bytes()


def is_hugging_face(data: str) -> bool:
    """Known by the files at its top."""
    if not os.path.isdir(data):
        return False
    saved = any(all(os.path.isfile(os.path.join(data, name)) for name in names) for names in SAVED)
    return saved or bool(parquet_files(data))


def parquet_files(data: str) -> list[str]:
    """In the folder, or in `data` within it; sorted."""
    return sorted(glob(os.path.join(escape(data), "*.parquet")) + glob(os.path.join(escape(data), "data", "*.parquet")))


def open_hugging_face(data: str, split: str | None) -> Source:
    """One split; keys are row numbers."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"'{data}' needs the package datasets; install it with: pip install 'alltokens[datasets]'"
        ) from error
    try:
        rows, name = read_parquet(data, split) if parquet_files(data) else read_saved(data, split)
    except UserError:
        raise
    except Exception as error:  # damaged files make pyarrow and datasets raise anything
        raise UserError(
            f"'{data}' cannot be read as a Hugging Face data set ({said_by(error)}); download it again"
        ) from error
    rows = rows.with_format(None)  # a format, such as tensors, is saved with the rows
    image = image_column(data, rows)
    # Our decoder is to see the bytes, as it does for every other source.
    images = rows.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    classes, labels = classes_of(rows)
    read = ReadRow(images, image, Path(data))
    return Source(data, Computed(len(rows), str), labels, classes, read, name, sha256_of(labels))


def read_saved(data: str, split: str | None) -> tuple[Any, str]:
    """What `save_to_disk` wrote, and the name of its split, empty where it has none."""
    from datasets import DatasetDict, load_from_disk

    saved = load_from_disk(data)
    if isinstance(saved, DatasetDict):
        name = chosen(data, saved, split)
        return saved[name], name
    if saved.split is None:
        require(split is None, f"'{data}' has no splits; it was saved as one data set, so leave out '{split}'")
        return saved, ""
    return saved, chosen(data, [str(saved.split)], split)


def read_parquet(data: str, split: str | None) -> tuple[Any, str]:
    """Parquet files, converted once into a cache of `datasets`, which reads single rows fast, and their split."""
    from datasets import Dataset, NamedSplit

    splits: dict[str, list[str]] = {}
    for path in parquet_files(data):
        splits.setdefault(split_of(path), []).append(path)
    name = chosen(data, splits, split)
    # The builder behind it takes local files alone, so nothing is asked of the Hub; it takes paths for patterns.
    return Dataset.from_parquet(list(map(escape, splits[name])), split=NamedSplit(name)), name


def split_of(path: str) -> str:
    """`train` of `train-00000-of-00002.parquet`, `train.parquet` and `train/0000.parquet`."""
    stem = PurePath(path).stem
    if stem.isdigit():
        return Path(path).resolve().parent.name
    shard = SHARD.fullmatch(stem)
    return shard[1] if shard else stem


def chosen(data: str, splits: Iterable[str], split: str | None) -> str:
    """The split asked for, or the only one."""
    there = sorted(splits)
    if split is None and len(there) == 1:
        return there[0]
    if split is None:
        raise UserError(f"'{data}' has the splits {', '.join(there)}; choose one of them")
    if split not in there:
        raise UserError(f"'{data}' has no split '{split}'; it has {', '.join(there)}")
    return split


def image_column(data: str, rows: Any) -> str:
    """The column of images; `image` where there are several."""
    from datasets import Image

    columns = [name for name, feature in rows.features.items() if isinstance(feature, Image)]
    if len(columns) == 1 or "image" in columns:
        return "image" if "image" in columns else columns[0]
    if columns:
        raise UserError(f"'{data}' has the image columns {', '.join(columns)}; rename the one to use to 'image'")
    raise UserError(f"'{data}' has no image column; its columns are {', '.join(rows.features)}")


def classes_of(rows: Any) -> tuple[tuple[str, ...], Sequence[int]]:
    """Names of the classes, and the number of each row's, -1 where it has none.

    A column that is called `label` may also hold names or numbers as they are, as other tools write them.
    """
    label = label_column(rows)
    if label is None:
        return (), array("i", [-1]) * len(rows)
    stated, feature = rows.select_columns([label])[:][label], rows.features[label]
    if hasattr(feature, "names"):
        return tuple(feature.names), array("i", [-1 if value is None else value for value in stated])
    present = sorted({value for value in stated if value not in (None, -1)})
    place = {value: number for number, value in enumerate(present)}
    return tuple(map(str, present)), array("i", [place.get(value, -1) for value in stated])


def label_column(rows: Any) -> str | None:
    """The column of classes: `label`, or else the finest of them."""
    from datasets import ClassLabel, Value

    feature = rows.features.get("label")
    if isinstance(feature, Value) and re.fullmatch(r"(large_)?string|u?int\d+", feature.dtype):
        return "label"
    columns = [name for name, feature in rows.features.items() if isinstance(feature, ClassLabel)]
    if "label" in columns:
        return "label"
    return max(columns, key=lambda name: rows.features[name].num_classes, default=None)
