"""`alltokens fit`: the whole way from a folder of images to a model of their classes, with defaults by its size."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from tyro.conf import Positional

from alltokens.annotate.annotator import Annotator, open_annotator
from alltokens.annotate.class_map import class_names
from alltokens.annotate.pip_weights import is_installed
from alltokens.annotate.write import Machine
from alltokens.cli.annotate import (
    HELD_OUT,
    accuracy_of_run,
    annotator_folder,
    beside,
    first_weights,
    plan_job,
    train_annotator,
    write_store,
)
from alltokens.cli.annotate import Flags as LabelFlags
from alltokens.cli.device import own_device
from alltokens.cli.evaluate import TOKEN_WEIGHT, images_of
from alltokens.cli.flags import parse
from alltokens.cli.train import default_folder, train_or_stop
from alltokens.cli.trained import open_trained
from alltokens.errors import by, require
from alltokens.evaluate.inference import evaluate_source
from alltokens.labels.store import the_first
from alltokens.models.config import ViTConfig
from alltokens.processes import is_first_process
from alltokens.progress import progress
from alltokens.recipes.own_folder import (
    Extent,
    annotator_config,
    annotator_of_run,
    extent_of,
    named_like,
    token_label_config,
)
from alltokens.sources.source import Source, open_source
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.machine import Machine as TrainMachine
from alltokens.train.run_folder import CONFIG, REPORT, read_config, require_run_or_room
from alltokens.train.trainer import open_sets

VALIDATION_FOLDERS = ("val", "valid", "validation", "test")
"""Beside `train`, the first of these that is there."""
KNOWS_IMAGENET = ("pip/efficientnet_lite2", "pip/efficientnet_lite0")
"""Annotators for classes of ImageNet's: the better one, and the one that a CPU has the time for."""


@dataclass(frozen=True)
class Flags:
    """Train a model for images of your own: annotate them, train on the labels of all tokens, evaluate and report.

    The model, its image size and the length of the run go by the number and size of the images, and by whether there
    is a GPU. The same command goes on with what was interrupted.
    """

    data: Positional[str]
    """Images in a folder for each class, or in such folders below train and val; also whatever else annotate takes."""
    validation: str | None = None
    """Images to evaluate on; None takes the folder val (or test) beside train, or holds out a fifth of each class."""
    folder: Path | None = None
    """The run's folder; None is runs/NAME of the data. Labels lie beside it, in FOLDER.labels."""
    workers: int = min(16, os.cpu_count() or 1)
    """Processes that decode, and augment where the device does not."""

    def __post_init__(self) -> None:
        require(self.workers >= 0, f"workers must be at least 0; got workers={self.workers}")


def run(arguments: list[str]) -> None:
    """All of it, or what is left of it."""
    flags = parse(Flags, arguments, "alltokens fit")
    data = find_data(flags.data, flags.validation)
    source, held_out = open_sets(data)
    assert held_out is not None
    device = own_device()
    extent = extent_of(source, device.type == "cuda")
    say(
        f"{data.root}: {len(source):,} images of {extent.classes} classes to train on, {held_out_words(data, held_out)}"
    )

    folder = flags.folder or default_folder(short_name(flags.data))
    require_run_or_room(folder)
    store = beside(folder, ".labels")
    machine = TrainMachine(device, flags.workers)
    annotator = choose_annotator(source, data, extent, store, machine)
    # Of the images to train on alone.
    job = plan_job(LabelFlags(data.root, store, annotator.name), source, annotator)
    write_store(job, store, Machine(device, 64 if extent.on_gpu else 16, flags.workers))

    config = token_label_config(replace(data, labels=str(store)), extent, len(annotator.classes))
    config = as_begun(folder, config)
    say(choice(config, extent))
    train_or_stop(config, folder, machine)
    if is_first_process():
        print_outcome(folder, held_out, Machine(device, 64, flags.workers))


def say(sentence: str) -> None:
    """To the user, from one of the processes."""
    if is_first_process():
        print(sentence, flush=True)


def find_data(data: str, validation: str | None) -> DataConfig:
    """Where the images to train and to evaluate on are."""
    if validation is not None:
        return DataConfig(root=data, validation=validation)
    train = Path(data, "train")
    beside = next((path for name in VALIDATION_FOLDERS if (path := Path(data, name)).is_dir()), None)
    # A class may be called train as well: its images lie in no folders of classes.
    if beside is None or not train.is_dir() or not open_source(str(train)).classes:
        return DataConfig(root=data, held_out=HELD_OUT)
    ours, theirs = (set(open_source(str(folder)).classes) for folder in (train, beside))
    require(
        ours == theirs,
        f"'{train}' and '{beside}' have different classes, {the_first(sorted(ours ^ theirs))} in one of them; "
        f"make them the same, or give '{train}' alone",
    )
    return DataConfig(root=str(train), validation=str(beside))


def held_out_words(data: DataConfig, held_out: Source) -> str:
    """`72 held out`, or where the others lie."""
    where = "held out" if data.validation is None else f"of {data.validation} to evaluate on"
    return f"{len(held_out):,} {where}"


def short_name(data: str) -> str:
    """`photos` for `some/photos`."""
    return re.sub(r"[^\w.-]+", "_", Path(data).resolve().name).strip("._") or "data"


def choose_annotator(source: Source, data: DataConfig, extent: Extent, store: Path, machine: TrainMachine) -> Annotator:
    """One that knows ImageNet, where the classes are called so; otherwise one that is trained on them first."""
    preferred = KNOWS_IMAGENET if extent.on_gpu else KNOWS_IMAGENET[::-1]
    name = next(filter(is_installed, preferred), None)
    classes = named_like(source.classes, class_names(1000))
    if name is not None and classes is not None:
        say(f"annotator: {name} as it is, because the classes are ImageNet's by name")
        return replace(open_annotator(name), classes=classes)
    folder = annotator_folder(store)
    network, initial = first_weights(None, None)
    config = as_begun(folder, annotator_config(data, network, extent, initial))
    say(f"annotator: {network}, trained on these classes for {config.schedule.epochs} epochs first")
    train_annotator(config, network, folder, machine)
    return annotator_of_run(folder)


def as_begun(folder: Path, config: TrainConfig) -> TrainConfig:
    """The config that the folder was begun with, perhaps on another machine; the data must be the same."""
    if not (folder / CONFIG).is_file():
        return config
    return replace(read_config(folder / CONFIG), data=config.data)


def choice(config: TrainConfig, extent: Extent) -> str:
    """What is trained, and why so."""
    assert isinstance(config.model, ViTConfig)
    model = f"LV-ViT {config.model.width} wide and {config.model.depth} deep at {by(config.model.image_size)} pixels"
    length = f"{config.schedule.epochs} epochs in batches of {config.batch}"
    where = "a GPU" if extent.on_gpu else "no GPU"
    return f"model: {model}, {length}, for {extent.images:,} images of about {extent.shorter_side} pixels and {where}"


def print_outcome(folder: Path, held_out: Source, machine: Machine) -> None:
    """How good it is, and what can be done with it."""
    trained = open_trained(str(folder), None, None)
    with progress("evaluating", "images") as report:
        evaluation = evaluate_source(trained, held_out, TOKEN_WEIGHT, machine, report)
    print(accuracy_of_run("model", folder))
    figures = ", ".join(f"{answers.accuracy():.1%} by {rule}" for rule, answers in evaluation.answers.items())
    print(f"its best weights on {images_of(evaluation):,} images: {figures}")
    print(f"report: {folder / REPORT}")
    print(f"to use it: alltokens predict {folder} IMAGE")
