"""`alltokens annotate`: score maps of a data set's images by a classifier, into a label store."""

import os
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional, UseCounterAction

from alltokens.annotate.annotator import open_annotator
from alltokens.annotate.canvas import Canvas, Fit
from alltokens.annotate.class_map import read_class_map
from alltokens.annotate.write import Job, Machine, annotate, usual_records_per_shard
from alltokens.cli.device import own_device
from alltokens.cli.flags import parse
from alltokens.errors import require
from alltokens.labels.store import LabelStore, the_first
from alltokens.progress import progress
from alltokens.sources.source import open_source


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
    """timm/NAME, pip/efficientnet_lite0 (1, 2), nfnet_f6 and the paper's others, one of our models, or a path."""
    checkpoint: Path | None = None
    """Weights of the annotator; None takes the published ones."""
    size: int | None = None
    """Pixels of a side at which it sees the images; None takes its own."""
    top_k: int = 5
    """Classes to keep in each cell."""
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


def run(arguments: list[str]) -> None:
    """Annotate and say what came of it."""
    flags = parse(Flags, arguments, "alltokens annotate")
    is_first = os.environ.get("RANK", "0") == "0"
    job = plan_job(flags)
    with progress("annotating", "images", quiet=not is_first) as report:
        annotate(job, flags.store, Machine(own_device(), flags.batch, flags.workers), report)
    if is_first:
        print_outcome(flags.store)


def plan_job(flags: Flags) -> Job:
    """What is asked for, checked as far as that goes without looking at an image."""
    source = open_source(flags.data, flags.split)
    annotator = open_annotator(flags.annotator, flags.checkpoint, flags.size)
    require(
        flags.fit == "square" or annotator.any_size,
        f"annotator '{flags.annotator}' takes images of one size; got --fit {flags.fit}, square would be right",
    )
    return Job(
        source=source,
        annotator=annotator,
        canvas=Canvas(flags.fit, annotator.image_size, annotator.stride, annotator.interpolation),
        top_k=flags.top_k,
        flip=bool(flags.flip),
        class_map=None if flags.classes is None else read_class_map(flags.classes, annotator.classes),
        records_per_shard=usual_records_per_shard(len(source)),
    )


def print_outcome(folder: Path) -> None:
    """How many images have labels, and why some have none."""
    store = LabelStore(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"label store {folder}: {len(store):,} images, {size / 1e6:,.1f} MB")
    if store.unreadable:
        listed = the_first([f"{key}: {reason}" for key, reason in store.unreadable.items()])
        print(f"{len(store.unreadable):,} of them could not be read and have no labels, {listed}")
