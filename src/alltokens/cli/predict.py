"""`alltokens predict`: the first answers of a trained model for some images."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from alltokens.annotate.class_map import describe_class
from alltokens.cli.device import own_device
from alltokens.cli.flags import parse
from alltokens.cli.table import print_table
from alltokens.cli.trained import open_trained
from alltokens.data.batch import Sample
from alltokens.data.samples import EvaluationSamples
from alltokens.errors import UserError, require
from alltokens.evaluate.inference import PICTURES, Predicted, Trained, predict_pictures
from alltokens.progress import progress
from alltokens.sources.folder import open_folder
from alltokens.sources.source import Source, text
from alltokens.train.run_folder import Which


@dataclass(frozen=True)
class Flags:
    """What a trained model sees in images: its first answers and how likely it finds them."""

    model: Positional[str]
    """The folder of a run, or a weight file."""
    images: Positional[tuple[Path, ...]]
    """Image files, or folders of them."""
    top: int = 5
    """Answers for each image."""
    token_weight: float | None = None
    """How much of the maximum over tokens is added to the image's logits; None is as much as the model says."""
    which: Which | None = None
    """Which of a run's two models; None is the best."""
    name: str | None = None
    """Which model a weight file is of that does not say so itself."""
    format: Literal["table", "json"] = "table"
    """For people, or for programs."""

    def __post_init__(self) -> None:
        require(len(self.images) > 0, "there is nothing to predict; give images, or folders of them")
        require(self.top >= 1, f"top must be at least 1; got top={self.top}")


def run(arguments: list[str]) -> None:
    """Print the answers, and what could not be read."""
    flags = parse(Flags, arguments, "alltokens predict")
    trained = open_trained(flags.model, flags.which, flags.name)
    trained.require_tokens(flags.token_weight)
    weight = trained.model.config.token_weight if flags.token_weight is None else flags.token_weight
    pictures = find_pictures(flags.images, trained)
    with progress("predicting", "images", quiet=len(pictures) <= PICTURES) as report:
        predicted = predict_pictures(trained, pictures, weight, flags.top, own_device(), report)
    if not predicted.answers:
        first, reason = next(iter(predicted.unreadable.items()))
        raise UserError(f"none of the {len(pictures):,} images can be read, such as '{first}' ({reason})")
    if flags.format == "json":
        print(json.dumps(as_json(trained, predicted), indent=1))
    else:
        print_answers(trained, predicted)


def find_pictures(paths: Sequence[Path], trained: Trained) -> dict[str, Callable[[], Sample]]:
    """How to get each picture, by its name; one that is named twice is there once."""
    pictures: dict[str, Callable[[], Sample]] = {}
    for path in paths:
        shown = text(os.fsencode(path))
        require(path.is_file() or path.is_dir(), f"there is no image or folder '{shown}'")
        source = open_folder(str(path)) if path.is_dir() else one_file(path)
        # What their folders are called is no class that they are to have.
        without_classes = replace(source, labels=[-1] * len(source), classes=())
        samples = EvaluationSamples(without_classes, (), trained.evaluation, trained.image_size)
        for index, key in enumerate(source.keys):
            pictures[f"{shown}/{key}" if path.is_dir() else shown] = partial(samples.sample, index)
    return pictures


def one_file(path: Path) -> Source:
    """A file as a data set; it is taken for an image whatever its name ends in."""
    return Source(str(path), (path.name,), (-1,), (), lambda index: path.read_bytes())


def as_json(trained: Trained, predicted: Predicted) -> dict[str, Any]:
    """The same for programs."""
    names = trained.classes
    return {
        "model": trained.name,
        "rule": predicted.rule,
        "images": [
            {
                "image": image,
                "answers": [
                    {"class": names[number], "words": describe_class(names[number]), "probability": probability}
                    for number, probability in answers
                ],
            }
            for image, answers in predicted.answers.items()
        ],
        "unreadable": [{"image": image, "reason": reason} for image, reason in predicted.unreadable.items()],
    }


def print_answers(trained: Trained, predicted: Predicted) -> None:
    """A row an answer, then a line for each image without one."""
    rows = [
        [
            "" if place else image,
            describe_class(trained.classes[number]),
            f"{probability:.1%}",
        ]
        for image, answers in predicted.answers.items()
        for place, (number, probability) in enumerate(answers)
    ]
    print_table(["image", "class", "probability"], rows, left=["image", "class"])
    for image, reason in predicted.unreadable.items():
        print(f"{image} has no answer: {reason}")
