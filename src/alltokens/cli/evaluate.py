"""`alltokens evaluate`: how often a trained model is right about a data set."""

import json
import os
import sys
from dataclasses import dataclass
from typing import Any, Literal

from tyro.conf import Positional, UseCounterAction

from alltokens.annotate.class_map import describe_class
from alltokens.annotate.write import Machine
from alltokens.cli.device import own_device
from alltokens.cli.flags import parse
from alltokens.cli.table import print_table
from alltokens.cli.trained import open_trained
from alltokens.errors import by, require
from alltokens.evaluate.classification import ClassFigures, by_class
from alltokens.evaluate.imagenet import name_numbers, real_labels
from alltokens.evaluate.inference import Evaluation, Trained, evaluate_source
from alltokens.labels.store import the_first
from alltokens.models.usage import require_crop
from alltokens.progress import progress
from alltokens.sources.source import open_source
from alltokens.train.run_folder import Which

TOKEN_WEIGHT = 0.5
"""Of the published rule."""
COLUMNS = {
    "top1": ("top-1", ".2%"),
    "top5": ("top-5", ".2%"),
    "loss": ("loss", ".4f"),
    "real_top1": ("ReaL top-1", ".2%"),
}
"""Heading and format of each figure, by its name in JSON."""


@dataclass(frozen=True)
class Flags:
    """How often a trained model is right about a data set, whose classes are matched with the model's by name.

    Numbers, as ImageNet-V2 has them, are ImageNet's classes for a model whose classes are WordNet ids.
    """

    model: Positional[str]
    """The folder of a run, or a weight file."""
    data: Positional[str]
    """A folder of images, a .tar file or pattern, a Hugging Face data set on disk, or torchvision/NAME:FOLDER."""
    split: str | None = None
    """Which split, for data sets that have several."""
    which: Which | None = None
    """Which of a run's two models; None is the best."""
    name: str | None = None
    """Which model a weight file is of that does not say so itself."""
    size: int | None = None
    """Pixels of a side of what the model sees; None is its own size."""
    crop: float | None = None
    """Share of an image's shorter side that it sees; None takes the run's, or the published one."""
    token_weight: float | None = None
    """The second rule adds so much of the maximum over tokens to the image's logits; None is 0.5, 0 leaves it out."""
    real: UseCounterAction[int] = 0
    """Print ReaL top-1 too: for images with the names that they have in ImageNet's validation set, in any folders."""
    by_class: UseCounterAction[int] = 0
    """Print a row for each class, by the last of the rules."""
    batch: int = 64
    """Images that go through the model at once."""
    workers: int = min(16, os.cpu_count() or 1)
    """Processes that decode images."""
    format: Literal["table", "json"] = "table"
    """For people, or for programs."""

    def __post_init__(self) -> None:
        require(self.size is None or self.size > 0, f"size must be above 0; got size={self.size}")
        if self.crop is not None:
            require_crop(self.crop)
        require(self.batch >= 1, f"batch must be at least 1; got batch={self.batch}")
        require(self.workers >= 0, f"workers must be at least 0; got workers={self.workers}")


def run(arguments: list[str]) -> None:
    """Ask the model about every image, and print the figures."""
    flags = parse(Flags, arguments, "alltokens evaluate")
    opened = open_source(flags.data, flags.split)
    trained = open_trained(flags.model, flags.which, flags.name, flags.size, flags.crop)
    trained.require_tokens(flags.token_weight)
    weight = TOKEN_WEIGHT if flags.token_weight is None else flags.token_weight
    machine = Machine(own_device(), flags.batch, flags.workers)
    source = name_numbers(opened, trained.classes)
    if source is not opened:
        number, name = opened.classes[0], source.classes[0]
        print(f"classes are ImageNet's by number: {number} is {name}, {describe_class(name)}", file=sys.stderr)
    real = real_labels(source, trained.classes) if flags.real else None
    with progress("evaluating", "images") as report:
        evaluation = evaluate_source(trained, source, weight, machine, report, real)
    *_, (last, answers) = evaluation.answers.items()
    classes = by_class(answers) if flags.by_class else None
    if flags.format == "json":
        print(json.dumps(as_json(trained, flags, evaluation, last, classes), indent=1))
        return
    print_figures(trained, flags, evaluation)
    if classes is not None:
        print_classes(trained, last, classes)


def as_json(
    trained: Trained, flags: Flags, evaluation: Evaluation, rule: str, classes: list[ClassFigures] | None
) -> dict[str, Any]:
    """The same for programs."""
    content: dict[str, Any] = {
        "model": trained.name,
        "data": flags.data,
        "split": flags.split,
        "size": trained.image_size,
        "crop": trained.evaluation.crop,
        "images": images_of(evaluation),
        "unreadable": evaluation.unreadable,
        "without_class": evaluation.without_class,
        "rules": {rule: figures_of(evaluation, rule) for rule in evaluation.answers},
    }
    if evaluation.real is not None:
        content["real_images"] = evaluation.real.images
    if classes is not None:
        names = trained.classes
        content["by_class"] = {
            "rule": rule,
            "classes": [
                {
                    "class": names[one.number],
                    "words": describe_class(names[one.number]),
                    "images": one.images,
                    "top1": one.top1,
                    "top5": one.top5,
                    "mistaken_for": None if one.mistaken_for is None else names[one.mistaken_for],
                }
                for one in classes
            ],
        }
    return content


def images_of(evaluation: Evaluation) -> int:
    """How many images the figures are of."""
    return len(next(iter(evaluation.answers.values())))


def figures_of(evaluation: Evaluation, rule: str) -> dict[str, float | None]:
    """By their names in JSON; None where no image has what a figure is made of."""
    answers = evaluation.answers[rule]
    figures: dict[str, float | None] = {"top1": None, "top5": None, "loss": None}
    if len(answers):
        figures = {"top1": answers.accuracy(), "top5": answers.accuracy(5), "loss": answers.mean_loss()}
    if evaluation.real is not None:
        figures["real_top1"] = evaluation.real.top1[rule]
    return figures


def print_figures(trained: Trained, flags: Flags, evaluation: Evaluation) -> None:
    """A row for each rule, and what they are figures of."""
    figures = {rule: figures_of(evaluation, rule) for rule in evaluation.answers}
    rows = [
        [rule, *("-" if value is None else format(value, COLUMNS[name][1]) for name, value in values.items())]
        for rule, values in figures.items()
    ]
    headings = [COLUMNS[name][0] for name in next(iter(figures.values()))]
    print_table(["rule", *headings], rows, left=["rule"])
    seen = f"at {by(trained.image_size)} pixels, crop {trained.evaluation.crop:g}"
    print(f"{images_of(evaluation):,} images of {flags.data} {seen}")
    left_out = "left out"
    if evaluation.real is not None:
        print(f"ReaL top-1 is of {evaluation.real.images:,} images with a ReaL label among the model's classes")
        left_out = "left out of all but ReaL top-1"
    if evaluation.unreadable:
        count, first = len(evaluation.unreadable), the_first(evaluation.unreadable)
        print(f"left out: {count:,} that cannot be read, {first}")
    if evaluation.without_class:
        print(f"{left_out}: {evaluation.without_class:,} without a class")


def print_classes(trained: Trained, rule: str, classes: list[ClassFigures]) -> None:
    """A row for each class that has images."""
    names = [describe_class(name) for name in trained.classes]
    rows = [
        [
            names[one.number],
            f"{one.images:,}",
            f"{one.top1:.1%}",
            f"{one.top5:.1%}",
            "" if one.mistaken_for is None else names[one.mistaken_for],
        ]
        for one in classes
    ]
    print(f"\nby {rule}")
    print_table(["class", "images", "top-1", "top-5", "most often taken for"], rows, ["class", "most often taken for"])
