"""`alltokens train`: a recipe, or the config of an earlier run, on the user's data."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Annotated

import tyro
import yaml
from tyro.conf import Positional, UseCounterAction

from alltokens.cli.device import own_device
from alltokens.cli.flags import parse
from alltokens.data.order import Share
from alltokens.data.samples import AugmentedBy
from alltokens.errors import UserError, require
from alltokens.objectives.distill import DistillConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.plain import to_plain
from alltokens.processes import is_first_process
from alltokens.progress import progress
from alltokens.recipes.memory import memory_of
from alltokens.recipes.names import RECIPES, find_recipe
from alltokens.recipes.recipe import NOT_GIVEN
from alltokens.train.config import TrainConfig
from alltokens.train.machine import Boards, Machine
from alltokens.train.optimizer import peak_learning_rate
from alltokens.train.run_folder import read_config
from alltokens.train.schedule import learning_rate
from alltokens.train.stopping import Stopped
from alltokens.train.trainer import classes_of, train

PROGRAM = "alltokens train"
GIBIBYTE = 2**30


@dataclass(frozen=True)
class Recipe:
    """Train a model, or go on with a run that was interrupted: the same command does both.

    'alltokens train RECIPE --help' lists every field that can be changed. Under torchrun the processes share the work:
    torchrun --nproc-per-node 8 -m alltokens train RECIPE ...
    """

    recipe: Positional[str]
    """One of 'alltokens recipes', such as lvvit_s_token_labels, or a config.yaml."""


@dataclass(frozen=True)
class Flags:
    """Every field of the recipe, and what has no part in the result."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    folder: Path | None = None
    """The run's folder; None is runs/RECIPE."""
    workers: int = min(16, os.cpu_count() or 1)
    """Processes that decode, and augment where the device does not."""
    augment: AugmentedBy | None = None
    """What resamples and recolours images: the workers or the device; None is the device where that is a GPU."""
    compile: bool = False
    """Compile the step: a minute or more before the first, faster ones after it."""
    shard: bool = False
    """Spread weights and all that belongs to them over the processes, for models that are too big for one (FSDP2)."""
    recompute: bool = False
    """Compute what happens in a block again in the backward pass: a third more time, far less memory."""
    deterministic: bool = False
    """Have a GPU do the same each time, bit for bit, as the CPU does anyway."""
    saving: float = Machine.saving
    """Share of the time that checkpoints may take: the more, the less a kill costs. SIGTERM and Ctrl-C save anyway."""
    tensorboard: bool = False
    """Write curves for TensorBoard into the run's folder."""
    wandb: str | None = None
    """The Weights & Biases project that gets the curves."""
    dry_run: UseCounterAction[int] = 0
    """Print the config, its batch, its learning rate and the memory it needs; train nothing and look at no data."""

    def machine(self) -> Machine:
        """What has no part in the result."""
        boards = Boards(tensorboard=self.tensorboard, wandb=self.wandb)
        return Machine(
            own_device(),
            self.workers,
            self.compile,
            self.shard,
            self.recompute,
            self.deterministic,
            boards,
            self.augment,
            self.saving,
        )


def run(arguments: list[str]) -> None:
    """Train, with progress; a run that is told to stop saves first."""
    name = parse(Recipe, arguments[:1], PROGRAM).recipe
    default = read_config(Path(name)) if name.endswith((".yaml", ".yml")) else find_recipe(name).config
    flags = parse(Flags, arguments[1:], f"{PROGRAM} {name}", default=Flags(default))
    if flags.dry_run:
        said = summary(flags)
        if is_first_process():
            print(said)
            if name in RECIPES:
                print(about(name))
        return
    data = flags.config.data
    require(data.root != NOT_GIVEN, "there is nothing to train on; give --data.root FOLDER")
    require(
        data.labels != NOT_GIVEN,
        f"'{name}' trains on labels; give --data.labels STORE ('alltokens annotate' makes one)",
    )
    require(
        flags.config.initial != NOT_GIVEN,
        f"'{name}' begins with trained weights; give --initial FILE, such as {first_weights(name)}",
    )
    config = replace(flags.config, model=replace(flags.config.model, classes=len(classes_of(flags.config))))
    folder = flags.folder or default_folder(name if name in RECIPES else Path(name).stem)
    train_or_stop(config, folder, flags.machine())
    if is_first_process():
        print(f"run folder {folder}: report.html, metrics.jsonl, best/model.safetensors")


def train_or_stop(config: TrainConfig, folder: Path, machine: Machine, work: str = "training") -> None:
    """Train with progress; a run that is told to stop saves, says so and ends the process."""
    with ended_when_stopped(), progress(work, "images", quiet=not is_first_process()) as report:
        train(config, folder, machine, report)


@contextmanager
def ended_when_stopped() -> Iterator[None]:
    """Turn a stop, before which all was saved, into the end of the process that whoever asked for it expects."""
    try:
        yield
    except Stopped as stopped:
        if is_first_process():
            print(f"{stopped}; the same command goes on", file=sys.stderr)
        sys.exit(stopped.status)


def first_weights(name: str) -> str:
    """Where the weights lie that a recipe begins with."""
    start = RECIPES[name].start if name in RECIPES else None
    return f"runs/{start or 'RECIPE'}/best/model.safetensors"


def summary(flags: Flags) -> str:
    """The config as YAML, itself a recipe, with what follows from it in comments; what training would refuse is too."""
    config, processes = flags.config, int(os.environ.get("WORLD_SIZE", "1"))
    Share(batch=config.batch // config.accumulate, processes=processes)
    peak = peak_learning_rate(config.optimizer, config.batch)
    learning_rate(config.schedule, peak, step=0, steps_per_epoch=1)
    memory = memory_of(config, processes, shard=flags.shard, recompute=flags.recompute)
    parts = ("weights", "gradients", "optimizer", "average", "activations")
    amounts = ", ".join(f"{part} {getattr(memory, part) / GIBIBYTE:.2f}" for part in parts)
    images = config.batch // (processes * config.accumulate)
    has_teacher = (
        isinstance(config.objective, DistillConfig | TokenLabelConfig) and config.objective.teacher is not None
    )
    return "\n".join(
        [
            yaml.safe_dump(to_plain(config), sort_keys=False, default_flow_style=None, width=120).rstrip(),
            f"# effective batch: {config.batch} images a step, {images} at a time in {processes} "
            f"{'process' if processes == 1 else 'processes'}",
            f"# learning rate: {peak:g} at its highest",
            f"# memory of a process, about: {memory.total / GIBIBYTE:.1f} GiB ({amounts})",
            "# activations by the rule that all the backward pass needs is kept, attention weights too"
            + (", and within blocks that of one" if flags.recompute else "")
            + ("; the teacher's memory is besides" if has_teacher else ""),
        ]
    )


def about(name: str) -> str:
    """What a recipe says of itself, in comments."""
    return fill(
        f"the recipe {name}: {RECIPES[name].__doc__}",
        width=120,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def default_folder(name: str) -> Path:
    """`runs/lvvit_s_token_labels`."""
    folder = Path("runs") / name
    try:
        folder.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder '{folder.parent}': {error.strerror}; give --folder") from error
    return folder
