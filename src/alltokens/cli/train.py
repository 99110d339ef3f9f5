"""`alltokens train`: a recipe, or the config of an earlier run, on the user's data."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from alltokens.cli.device import own_device
from alltokens.cli.flags import parse
from alltokens.errors import UserError, require
from alltokens.progress import progress
from alltokens.recipes.names import RECIPES, find_recipe
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.machine import Boards, Machine
from alltokens.train.run_folder import read_config
from alltokens.train.stopping import Stopped
from alltokens.train.trainer import classes_of, train

PROGRAM = "alltokens train"
NOT_GIVEN = ""
"""What a recipe has in place of the user's data."""


@dataclass(frozen=True)
class Recipe:
    """Train a model, or go on with a run that was interrupted: the same command does both.

    'alltokens train RECIPE --help' lists every field that can be changed. Under torchrun the processes share the work.
    """

    recipe: Positional[str]
    """One of the recipes, such as lvvit_s_token_labels, or a config.yaml."""


@dataclass(frozen=True)
class Flags:
    """Every field of the recipe, and what has no part in the result."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    run: Path | None = None
    """The run's folder; None is runs/RECIPE."""
    workers: int = min(16, os.cpu_count() or 1)
    """Processes that decode and augment."""
    compile: bool = False
    """Compile the step: a minute or more before the first, faster ones after it."""
    shard: bool = False
    """Spread weights and all that belongs to them over the processes, for models that are too big for one (FSDP2)."""
    recompute: bool = False
    """Compute what happens in a block again in the backward pass: a third more time, far less memory."""
    deterministic: bool = False
    """Have a GPU do the same each time, bit for bit, as the CPU does anyway."""
    tensorboard: bool = False
    """Write curves for TensorBoard into the run's folder."""
    wandb: str | None = None
    """The Weights & Biases project that gets the curves."""

    def machine(self) -> Machine:
        """What has no part in the result."""
        boards = Boards(tensorboard=self.tensorboard, wandb=self.wandb)
        return Machine(own_device(), self.workers, self.compile, self.shard, self.recompute, self.deterministic, boards)


def run(arguments: list[str]) -> None:
    """Train, with progress; a run that is told to stop saves first."""
    name = parse(Recipe, arguments[:1], PROGRAM).recipe
    default = read_config(Path(name)) if name.endswith((".yaml", ".yml")) else of_recipe(name)
    flags = parse(Flags, arguments[1:], f"{PROGRAM} {name}", default=Flags(default))
    data = flags.config.data
    require(data.root != NOT_GIVEN, "there is nothing to train on; give --data.root FOLDER")
    require(
        data.labels != NOT_GIVEN,
        f"'{name}' trains on labels; give --data.labels STORE ('alltokens annotate' makes one)",
    )
    config = replace(flags.config, model=replace(flags.config.model, classes=len(classes_of(data))))
    folder = flags.run or default_folder(name)
    train_or_stop(config, folder, flags.machine())
    print(f"run folder {folder}: report.html, metrics.jsonl, best/model.safetensors")


def train_or_stop(config: TrainConfig, folder: Path, machine: Machine, work: str = "training") -> None:
    """Train with progress; a run that is told to stop saves, says so and ends the process."""
    is_quiet = os.environ.get("RANK", "0") != "0"
    with ended_when_stopped(), progress(work, "images", quiet=is_quiet) as report:
        train(config, folder, machine, report)


@contextmanager
def ended_when_stopped() -> Iterator[None]:
    """Turn a stop, before which all was saved, into the end of the process that whoever asked for it expects."""
    try:
        yield
    except Stopped as stopped:
        print(f"{stopped}; the same command goes on", file=sys.stderr)
        sys.exit(stopped.status)


def of_recipe(name: str) -> TrainConfig:
    """The recipe with the user's data still to come."""
    recipe = find_recipe(name)
    try:
        return recipe(DataConfig(root=NOT_GIVEN, labels=NOT_GIVEN))
    except UserError:
        return recipe(DataConfig(root=NOT_GIVEN))


def default_folder(name: str) -> Path:
    """`runs/lvvit_s_token_labels`."""
    folder = Path("runs") / (name if name in RECIPES else Path(name).stem)
    folder.parent.mkdir(exist_ok=True)
    return folder
