"""Truths about ImageNet's classes that are no folder names: ImageNet-V2's class numbers, and ReaL labels."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from timm.data import RealLabelsImagenet

from alltokens.annotate.class_map import class_names, wordnet
from alltokens.errors import require
from alltokens.evaluate.classification import Answers
from alltokens.labels.store import the_first
from alltokens.sources.source import Source

CLASSES = 1000
NUMBER = re.compile("[0-9]{1,3}")
VALIDATION_IMAGES = 50_000


def name_numbers(source: Source, classes: Sequence[str]) -> Source:
    """With WordNet ids for classes that are called by ImageNet's numbers, as in ImageNet-V2, if the model's are ids.

    Any other source is handed back as it is; so is every one where the model itself calls classes by numbers.
    """
    are_numbers = len(source.classes) > 0 and all(map(NUMBER.fullmatch, source.classes))
    if not are_numbers or without_id(classes):
        return source
    ids = class_names(CLASSES)
    return replace(source, classes=tuple(ids[int(number)] for number in source.classes))


def without_id(classes: Sequence[str]) -> list[str]:
    """The classes that are not called by WordNet ids."""
    return [name for name in classes if name not in wordnet()]


def real_labels(source: Source, classes: Sequence[str]) -> dict[str, set[int]]:
    """The model's classes that are right about each image of ImageNet's validation set (ReaL, Beyer et al. 2020).

    A label that the model has no class for cannot be answered. An image without any other is not there, like those
    in which the reassessment found no class: a model of fewer classes is measured where it can be right.
    """
    others = without_id(classes)
    require(
        not others,
        f"ReaL labels are classes of ImageNet, and {len(others):,} of the model's {len(classes):,} are none, "
        f"{the_first(others)}; --real needs a model whose classes are WordNet ids, such as 'n01440764'",
    )
    known = [f"ILSVRC2012_val_{number:08}.JPEG" for number in range(1, VALIDATION_IMAGES + 1)]
    labels: Mapping[str, Sequence[int]] = RealLabelsImagenet(known).real_labels
    # By the number in it: copies of the images that were encoded anew end otherwise.
    names = {key: f"{PurePosixPath(key).stem}.JPEG" for key in source.keys}
    foreign = [key for key, name in names.items() if name not in labels]
    require(
        not foreign,
        f"ReaL labels are of ImageNet's validation set, and {len(foreign):,} of the {len(source):,} images of "
        f"'{source.name}' are not named as in it, {the_first(foreign)}; its names go from {known[0]} to {known[-1]}",
    )
    place = {name: number for number, name in enumerate(classes)}
    numbers = {label: place[name] for label, name in enumerate(class_names(CLASSES)) if name in place}
    found = {key: {numbers[label] for label in labels[name] if label in numbers} for key, name in names.items()}
    right = {key: answers for key, answers in found.items() if answers}
    require(
        bool(right),
        f"none of the {len(source):,} images of '{source.name}' has a ReaL label among the model's {len(classes):,} "
        f"classes, {the_first(classes)}",
    )
    return right


@dataclass(frozen=True)
class RealFigures:
    """How often the first answer is among an image's ReaL labels."""

    images: int
    """Those that could be read and have a label."""
    top1: dict[str, float | None]
    """By the rule; None of no image."""


def real_figures(right: Mapping[str, Set[int]], by_rule: Mapping[str, Answers]) -> RealFigures:
    """From the answers of each rule for the same images, of which some have labels."""
    top1: dict[str, float | None] = {}
    for rule, answers in by_rule.items():
        first = zip(answers.keys, answers.first[:, 0].tolist(), strict=True)
        is_right = [number in right[key] for key, number in first if key in right]
        top1[rule] = sum(is_right) / len(is_right) if is_right else None
    return RealFigures(len(is_right), top1)
