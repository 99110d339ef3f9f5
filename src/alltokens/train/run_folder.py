"""The folder of a run: its config, which must not change, and where everything else of it lies."""

import json
import platform
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import timm
import torch
import torchvision
import yaml

from alltokens import files
from alltokens.errors import UserError, require
from alltokens.plain import from_plain, to_plain
from alltokens.train.checkpoint import MODEL
from alltokens.train.config import TrainConfig

CONFIG, ENVIRONMENT, CLASSES, METRICS = "config.yaml", "environment.json", "classes.json", "metrics.jsonl"
LAST, BEST = "last", "best"
REPORT = "report.html"

Which = Literal["best", "last"]
"""Of a run's two models."""


def open_run(folder: Path, config: TrainConfig, classes: Sequence[str]) -> None:
    """Make the folder a run of this config, or go on with it; a run of another config is refused.

    `classes` are the names of the model's classes, which its answers are given in.
    """
    if not folder.exists():
        try:
            folder.mkdir()
        except OSError as error:
            raise UserError(f"cannot make the run folder '{folder}': {error.strerror}") from error
    if (folder / CONFIG).exists():
        changes = differences(to_plain(read_config(folder / CONFIG)), to_plain(config))
        if changes:
            raise UserError(
                f"'{folder}' is a run of another config: {', '.join(changes)}; keep to it or give another folder"
            )
        return
    if any(path.name not in (ENVIRONMENT, CLASSES) for path in folder.iterdir()):
        raise UserError(f"'{folder}' holds other files and no {CONFIG}; give a new or empty folder")
    for name, content in ((ENVIRONMENT, environment()), (CLASSES, list(classes))):
        written = json.dumps(content, indent=1) + "\n"
        files.write_atomically(folder / name, partial(write_text, written))
    # Last, because a folder with a config in it is a run.
    text = yaml.safe_dump(to_plain(config), sort_keys=False, default_flow_style=None, width=120)
    files.write_atomically(folder / CONFIG, partial(write_text, text))


def write_text(text: str, file: BinaryIO) -> None:
    """As UTF-8."""
    file.write(text.encode())


def read_config(path: Path) -> TrainConfig:
    """A config that was written as YAML, by hand or by a run."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"'{path}' cannot be read as YAML ({reason})") from error
    return from_plain(TrainConfig, content)


def read_classes(path: Path) -> tuple[str, ...]:
    """The names that a run gives its model's classes."""
    try:
        names = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' cannot be read as JSON ({error}); it names the classes of the run") from error
    require(
        isinstance(names, list) and all(isinstance(name, str) for name in names),
        f"'{path}' holds no list of names; it names the classes of the run",
    )
    return tuple(names)


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
