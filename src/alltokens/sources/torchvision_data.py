"""Data sets of torchvision's that lie on disk already: `torchvision/CIFAR10:data`."""

import inspect
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from PIL import Image

from alltokens.errors import UserError, did_you_mean
from alltokens.sources.decode import reading, said_by
from alltokens.sources.source import Computed, Source, sha256_of

PREFIX = "torchvision/"
LABEL_LISTS = ("targets", "labels", "_labels", "y")
PAIR_LISTS = ("_samples", "samples")
"""Where torchvision's data sets keep all classes, so that no image has to be read for its class."""
CLASS_LISTS = ("wnids", "classes", "categories")
"""Where they keep names; WordNet ids, where there are any, are what annotators know classes by."""


@dataclass(frozen=True)
class ReadImage:
    """A row's image as torchvision decodes it."""

    rows: Any

    def __call__(self, index: int) -> Image.Image:
        with reading():
            return self.rows[index][0]


@dataclass(frozen=True)
class ReadLabel:
    """A row's class, of a data set that has no list of them."""

    rows: Any

    def __call__(self, index: int) -> int:
        return int(self.rows[index][1])


def open_torchvision(data: str, split: str | None) -> Source:
    """Keys are row numbers; nothing is ever downloaded."""
    name, _, root = data.removeprefix(PREFIX).partition(":")
    build = data_set_class(name)
    arguments = arguments_for(build, name, root, split)
    try:
        rows = build(**arguments)
        sample = rows[0]
    except Exception as error:  # each data set has its own ways to say that files are missing
        # "You can use download=True" is advice to those who call torchvision themselves.
        reason, _, _ = said_by(error).partition(". You can use")
        _, _, valid = reason.partition("for argument split. Valid values are ")
        if valid:
            there = ", ".join(re.findall("'([^']*)'", valid))
            raise UserError(f"torchvision's {name} has no split '{split}'; it has {there}") from error
        raise UserError(
            f"torchvision cannot open '{data}' ({reason}); download the data set first, nothing is downloaded here"
        ) from error
    if len(sample) != 2 or not isinstance(sample[0], Image.Image) or not isinstance(sample[1], Integral | None):
        kinds = ", ".join(type(part).__name__ for part in sample)
        raise UserError(f"torchvision's {name} is no data set of images and classes: it gives {kinds}")
    labels = labels_of(rows, unlabeled=sample[1] is None)
    digest = sha256_of(labels) if isinstance(labels, array) else ""
    keys, names = Computed(len(rows), str), class_names(rows, labels)
    return Source(data, keys, labels, names, ReadImage(rows), split_opened(build, arguments), digest)


def data_set_class(name: str) -> Callable[..., Any]:
    """The data set of that name."""
    from torchvision import datasets

    known = [name for name in datasets.__all__ if inspect.isclass(getattr(datasets, name))]
    if name not in known:
        raise UserError(f"torchvision has no data set '{name}'{did_you_mean(name, known)}")
    found: Callable[..., Any] = getattr(datasets, name)
    return found


def arguments_for(build: Callable[..., Any], name: str, root: str, split: str | None) -> dict[str, Any]:
    """What the data set is opened with: its folder, its split, and no download."""
    parameters = inspect.signature(build).parameters
    arguments: dict[str, Any] = {"download": False} if "download" in parameters else {}
    if ("root" in parameters) != bool(root):
        right = f"{PREFIX}{name}:FOLDER" if "root" in parameters else f"{PREFIX}{name}"
        raise UserError(f"torchvision's {name} takes {'a' if 'root' in parameters else 'no'} folder; write {right}")
    if root:
        arguments["root"] = root
    if split is not None:
        arguments |= split_argument(parameters, name, split)
    needed = [
        key for key, value in parameters.items() if value.default is value.empty and value.kind != value.VAR_KEYWORD
    ]
    if missing := [key for key in needed if key not in arguments]:
        if missing == ["split"]:
            raise UserError(f"torchvision's {name} needs a split; give the name of one")
        raise UserError(f"torchvision's {name} needs {', '.join(missing)} too, so it cannot be opened by a name alone")
    return arguments


def split_argument(parameters: Any, name: str, split: str) -> dict[str, Any]:
    """As the data set calls it."""
    if "split" in parameters:
        return {"split": split}
    if "train" not in parameters:
        raise UserError(f"torchvision's {name} has no splits; leave out '{split}'")
    if split not in ("train", "test"):
        raise UserError(f"torchvision's {name} has no split '{split}'; it has train, test")
    return {"train": split == "train"}


def split_opened(build: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """The split that these arguments open, which may be the data set's usual one; empty where it has none."""
    bound = inspect.signature(build).bind(**arguments)
    bound.apply_defaults()
    match bound.arguments:
        case {"split": split}:
            return str(split)
        case {"train": bool() as train}:
            return "train" if train else "test"
        case _:
            return ""


def labels_of(rows: Any, unlabeled: bool) -> Sequence[int]:
    """From the data set's own list, or row by row where it has none."""
    if unlabeled:
        return array("i", [-1]) * len(rows)
    for name in LABEL_LISTS:
        found = getattr(rows, name, None)
        if found is not None and len(found) == len(rows):
            return array("i", np.asarray(found).astype(int).tolist())
    for name in PAIR_LISTS:
        found = getattr(rows, name, None)
        if found is not None and len(found) == len(rows):
            return array("i", [int(label) for _, label in found])
    return Computed(len(rows), ReadLabel(rows))


def class_names(rows: Any, labels: Sequence[int]) -> tuple[str, ...]:
    """The data set's names; numbers where it has none."""
    for attribute in CLASS_LISTS:
        if isinstance(names := getattr(rows, attribute, None), list | tuple) and len(names) > max_of(labels):
            return tuple(name if isinstance(name, str) else ", ".join(name) for name in names)
    return tuple(map(str, range(getattr(rows, "num_classes", max_of(labels) + 1))))


def max_of(labels: Sequence[int]) -> int:
    """The largest class; -1 where that would take reading every image."""
    return max(labels) if isinstance(labels, array) else -1
