"""The demo from nothing to accuracies: scenes, an annotator, its labels, and a model for each kind of labels."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from alltokens.annotate.canvas import Canvas
from alltokens.annotate.write import Job, annotate, usual_records_per_shard
from alltokens.annotate.write import Machine as Annotating
from alltokens.demo.configs import Extent, Labels, annotator_config, transformer_config
from alltokens.demo.scenes import SIDE, read_digits, write_scenes
from alltokens.files import write_folder
from alltokens.progress import progress
from alltokens.recipes.own_folder import annotator_of_run
from alltokens.sources.source import open_source
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.journal import read_reports
from alltokens.train.machine import Machine
from alltokens.train.run_folder import METRICS
from alltokens.train.trainer import train

SCENES, ANNOTATOR, LABELS = "scenes", "annotator", "labels"
TOP = 5


def prepare(folder: Path, seed: int, machine: Machine, extent: Extent) -> None:
    """Scenes, the annotator and its labels, or what an earlier, interrupted call left of them."""
    folder.mkdir(exist_ok=True)
    if not (folder / SCENES).exists():
        write_folder(folder / SCENES, partial(fill_scenes, extent, seed))
    data = data_of(folder)
    train_shown("training the annotator", annotator_config(data, extent, seed), folder / ANNOTATOR, machine)
    write_labels(folder, machine)


def train_with(kind: Labels, folder: Path, seed: int, machine: Machine, extent: Extent) -> None:
    """The model of one kind of labels, or what is left of its run."""
    data = data_of(folder)
    if not kind.startswith("plain"):
        data = replace(data, labels=str(folder / LABELS))
    config = transformer_config(kind, data, extent, seed)
    train_shown(f"training with {kind}", config, run_folder(folder, kind), machine)


def fill_scenes(extent: Extent, seed: int, folder: Path) -> None:
    """Held-out scenes are of digits that are in no other."""
    train_digits, other_digits = read_digits()
    write_scenes(folder / "train", train_digits, extent.scenes, 2 * seed)
    write_scenes(folder / "held_out", other_digits, extent.held_out, 2 * seed + 1)


def data_of(folder: Path) -> DataConfig:
    """The scenes of a demo."""
    return DataConfig(root=str(folder / SCENES / "train"), validation=str(folder / SCENES / "held_out"))


def run_folder(folder: Path, kind: Labels) -> Path:
    """`demo/token_labels`."""
    return folder / kind.replace(",", "").replace(" ", "_")


def train_shown(work: str, config: TrainConfig, folder: Path, machine: Machine) -> None:
    """Train, with progress."""
    with progress(work, "images") as report:
        train(config, folder, machine, report)


def write_labels(folder: Path, machine: Machine) -> None:
    """What the annotator sees in every part of every scene."""
    source, annotator = open_source(data_of(folder).root), annotator_of_run(folder / ANNOTATOR, SIDE)
    job = Job(
        source=source,
        annotator=annotator,
        canvas=Canvas("square", annotator.image_size, annotator.stride, annotator.interpolation),
        top_k=TOP,
        flip=False,
        class_map=None,
        records_per_shard=usual_records_per_shard(len(source)),
    )
    with progress("annotating", "images") as report:
        annotate(job, folder / LABELS, Annotating(machine.device, 64, machine.workers), report)


def top1(run: Path) -> float:
    """Of the held-out scenes, after the last epoch: the best epoch would be chosen by them."""
    return float(read_reports(run / METRICS)[-1]["top1"])
