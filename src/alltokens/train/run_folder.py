"""The folder of a run: its config, which must not change, and where everything else of it lies."""

import json
import platform
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal

import timm
import torch
import torchvision
import yaml

from alltokens import files
from alltokens.errors import UserError, require
from alltokens.labels.keys import keys_sha256
from alltokens.plain import from_plain, to_plain
from alltokens.train.checkpoint import MODEL
from alltokens.train.config import TrainConfig

CONFIG, ENVIRONMENT, CLASSES, IMAGES = "config.yaml", "environment.json", "classes.json", "images.json"
METRICS = "metrics.jsonl"
LAST, BEST = "last", "best"
REPORT = "report.html"

ABOUT = (ENVIRONMENT, CLASSES, IMAGES)
"""What is written before the config."""

Which = Literal["best", "last"]
"""Of a run's two models."""


def require_own_run(folder: Path, config: TrainConfig, classes: Sequence[str], keys: Sequence[str]) -> None:
    """Refuse a folder that is a run of another config or other images, or is full of something else.

    `classes` are the names of the model's classes, which its answers are given in, and `keys` those of its images.
    """
    require_run_or_room(folder)
    if not (folder / CONFIG).exists():
        return
    changes = differences(to_plain(read_config(folder / CONFIG)), to_plain(config))
    require(
        not changes,
        f"'{folder}' is a run of another config: {', '.join(changes)}; keep to it or give another folder",
    )
    for there, now in zip_longest(read_classes(folder / CLASSES), classes):
        require(
            there == now,
            f"'{folder}' is a run of other classes: '{there}' there is '{now}' now; name them as they were or give "
            "another folder",
        )
    if (folder / IMAGES).exists():
        begun, given = read_json(folder / IMAGES, "it says which images the run is of"), about_images(keys)
        was, count = begun["images"], len(keys)
        counts = "as many, but not the same" if was == count else f"{was:,} there and {count:,} now"
        require(begun == given, f"'{folder}' is a run of other images, {counts}; put them back or give another folder")


def require_run_or_room(folder: Path) -> None:
    """Refuse a folder that is full of something else than a run; it may not be there yet."""
    require(folder.is_dir() or not folder.exists(), f"'{folder}' is a file; give a new or empty folder")
    if folder.is_dir() and not (folder / CONFIG).exists():
        others = [path for path in folder.iterdir() if path.name not in ABOUT and path.suffix != ".part"]
        require(not others, f"'{folder}' holds other files and no {CONFIG}; give a new or empty folder")


def begin_run(folder: Path, config: TrainConfig, classes: Sequence[str], keys: Sequence[str]) -> None:
    """Make the folder a run, if it is none yet."""
    if (folder / CONFIG).exists():
        return
    for name, content in ((ENVIRONMENT, environment()), (CLASSES, list(classes)), (IMAGES, about_images(keys))):
        written = json.dumps(content, indent=1) + "\n"
        files.write_atomically(folder / name, partial(write_text, written))
    # Last, because a folder with a config in it is a run.
    text = yaml.safe_dump(to_plain(config), sort_keys=False, default_flow_style=None, width=120)
    files.write_atomically(folder / CONFIG, partial(write_text, text))


def about_images(keys: Sequence[str]) -> dict[str, Any]:
    """By what the images of a run are known again."""
    return {"images": len(keys), "keys_sha256": keys_sha256(keys)}


def write_text(text: str, file: BinaryIO) -> None:
    """As UTF-8."""
    file.write(text.encode())


def read_config(path: Path) -> TrainConfig:
    """A config that was written as YAML, by hand or by a run."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:  # a ValueError: no UTF-8, or a date that is none
        reason = str(error).splitlines()[0]
        raise UserError(f"'{path}' cannot be read as YAML ({reason})") from error
    return from_plain(TrainConfig, content)


def read_classes(path: Path) -> tuple[str, ...]:
    """The names that a run gives its model's classes."""
    purpose = "it names the classes of the run"
    names = read_json(path, purpose)
    require(
        isinstance(names, list) and all(isinstance(name, str) for name in names),
        f"'{path}' holds no list of names; {purpose}",
    )
    return tuple(names)


def read_json(path: Path, purpose: str) -> Any:
    """What a run wrote of itself."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' cannot be read as JSON ({error}); {purpose}") from error


def weights_of_run(run: Path, which: Which) -> Path:
    """The weight file of one of a run's two checkpoints."""
    folder = files.whole_folder(run / which)
    if folder is None or not (folder / MODEL).is_file():
        raise UserError(f"run '{run}' has no {which} model yet; it has one when its first epoch is over")
    return folder / MODEL


def differences(there: dict[str, Any], now: dict[str, Any], key: str = "") -> list[str]:
    """`batch is 64 there and 32 now` for each value that differs, by its dotted key."""
    changes = []
    for name in dict.fromkeys([*there, *now]):
        ours, theirs = there.get(name), now.get(name)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            changes += differences(ours, theirs, f"{key}{name}.")
        elif ours != theirs:
            changes.append(f"{key}{name} is {ours} there and {theirs} now")
    return changes


def environment() -> dict[str, Any]:
    """With what a run was begun."""
    return {
        "command": sys.argv,
        "begun": datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU",
    }
