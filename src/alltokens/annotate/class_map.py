"""What an annotator's classes are called, and how they become the classes of a data set."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import Tensor

from alltokens.errors import UserError, did_you_mean
from alltokens.shapes import Float

HEADER = ["annotator", "dataset"]

Entry = tuple[str, str, str]
"""Where in a file it stands, the annotator's class, the data set's class."""


def class_names(count: int) -> tuple[str, ...]:
    """WordNet ids for the class counts of ImageNet and its larger sets, otherwise numbers."""
    subset = infer_imagenet_subset({"num_classes": count})
    return tuple(ImageNetInfo(subset).label_names() if subset else map(str, range(count)))


@cache
def wordnet() -> dict[str, str]:
    """Words for every WordNet id that timm knows, separated by commas."""
    # The largest of timm's sets has all of the others' classes but one of the smallest.
    sets = [ImageNetInfo(subset) for subset in ("imagenet-21k-goog", "imagenet-1k")]
    return {name: info.label_name_to_description(name) for info in sets for name in info.label_names()}


def describe_class(name: str) -> str:
    """Human words for a WordNet id; any other name stands for itself."""
    return wordnet().get(name, name)


@dataclass(frozen=True)
class ClassMap:
    """Groups of an annotator's classes that are one class of the data set."""

    classes: tuple[str, ...]
    """The data set's, sorted by name, as folders are."""
    target: tuple[int, ...]
    """For each class of the annotator its place among these, -1 where it is dropped."""

    def apply(self, logits: Float[Tensor, "b k h w"]) -> Float[Tensor, "b c h w"]:
        """Log-sum-exp of each group, at least in float32; -inf where a group is empty."""
        assert logits.shape[1] == len(self.target), f"the map is for {len(self.target)} classes, not {logits.shape[1]}"
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        b, _, h, w = wide.shape
        mapped = wide.new_full((b, len(self.classes), h, w), -torch.inf)
        for groups, members in self.groups_by_size():
            mapped[:, groups] = wide[:, members].logsumexp(2)
        return mapped

    def groups_by_size(self) -> list[tuple[list[int], list[list[int]]]]:
        """Groups of one size with the annotator's classes in each: few sizes, so few steps, and the same sum always."""
        members: dict[int, list[int]] = {}
        for source, group in enumerate(self.target):
            if group >= 0:
                members.setdefault(group, []).append(source)
        sizes: dict[int, list[int]] = {}
        for group, sources in sorted(members.items()):
            sizes.setdefault(len(sources), []).append(group)
        return [(groups, [members[group] for group in groups]) for groups in sizes.values()]


def read_class_map(path: str | Path, annotator_classes: Sequence[str]) -> ClassMap:
    """The map in a JSON object, or in two columns of a CSV or TSV: the annotator's class, the data set's class.

    An annotator's class is given by its name, its number or its words in WordNet.
    """
    path = Path(path)
    text = read_text(path)
    is_json = path.suffix == ".json" or text.lstrip().startswith("{")
    spellings = spellings_of(annotator_classes)
    chosen: dict[int, str] = {}
    for place, source, target in (json_entries if is_json else table_entries)(path, text):
        if not target:
            raise UserError(f"'{path}', {place}: '{source}' has no class of the data set")
        number = find_class(f"'{path}', {place}", source, annotator_classes, spellings)
        if chosen.setdefault(number, target) != target:
            raise UserError(
                f"'{path}', {place}: '{source}' becomes '{target}', but it became '{chosen[number]}' before; "
                "an annotator's class has one class of the data set"
            )
    if not chosen:
        raise UserError(f"'{path}' maps no class; give pairs of an annotator's class and a data set's class")
    classes = tuple(sorted(set(chosen.values())))
    places = {name: place for place, name in enumerate(classes)}
    target_of = (places[chosen[number]] if number in chosen else -1 for number in range(len(annotator_classes)))
    return ClassMap(classes, tuple(target_of))


def read_text(path: Path) -> str:
    """The file, which must be text."""
    if not path.is_file():
        raise UserError(f"there is no class map '{path}'; give a JSON, CSV or TSV file")
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    if "\0" in text or "\ufffd" in text:
        raise UserError(f"'{path}' is no text in UTF-8; a class map is a JSON, CSV or TSV file")
    return text


def json_entries(path: Path, text: str) -> list[Entry]:
    """Pairs of a JSON object, a key that stands twice included."""
    try:
        # An array is a list, so that an object is something else.
        pairs = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"'{path}' is not JSON ({error}); a class map is an object or a table of two columns"
        ) from error
    if not isinstance(pairs, tuple):
        raise UserError(f"'{path}' holds no object; a class map is {{an annotator's class: a data set's class, ...}}")
    entries = []
    for number, (source, target) in enumerate(pairs, start=1):
        if not isinstance(target, str):
            raise UserError(f"'{path}', entry {number}: '{source}' must become a class's name; got {target!r}")
        entries.append((f"entry {number}", source.strip(), target.strip()))
    return entries


def table_entries(path: Path, text: str) -> list[Entry]:
    """Rows of two columns, apart by tabs if the first line has one, otherwise by commas."""
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), "")
    rows = csv.reader(lines, delimiter="\t" if "\t" in first else ",", skipinitialspace=True, strict=True)
    entries: list[Entry] = []
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells) or (not entries and cells == HEADER):
                continue
            if len(cells) != 2:
                raise UserError(
                    f"'{path}', line {rows.line_num}: got {len(cells)} columns; a class map has two, an annotator's "
                    "class, in quotes if it has commas, and a data set's"
                )
            entries.append((f"line {rows.line_num}", cells[0], cells[1]))
    except csv.Error as error:
        raise UserError(f"'{path}', line {rows.line_num}: {error}; a class map is a table of two columns") from error
    return entries


def spellings_of(classes: Sequence[str]) -> dict[str, set[int]]:
    """Numbers of the classes that each name, number, or word or words of WordNet may mean."""
    spellings: dict[str, set[int]] = {}
    for number, name in enumerate(classes):
        words = describe_class(name)
        for spelling in (words, *words.split(",")):
            spellings.setdefault(normal(spelling), set()).add(number)
    # A name is never taken for another's word, nor a number for a name.
    spellings |= {str(number): {number} for number in range(len(classes))}
    return spellings | {normal(name): {number} for number, name in enumerate(classes)}


def normal(spelling: str) -> str:
    """Without the differences that readers overlook."""
    return " ".join(spelling.casefold().split())


def find_class(where: str, source: str, classes: Sequence[str], spellings: dict[str, set[int]]) -> int:
    """The number of the annotator's class that is meant."""
    meant = spellings.get(normal(source), set())
    if len(meant) > 1:
        choices = " or ".join(f"{classes[number]} ({describe_class(classes[number])})" for number in sorted(meant))
        raise UserError(f"{where}: '{source}' may be {choices}; give the id")
    if not meant:
        raise UserError(f"{where}: the annotator has no class '{source}'{did_you_mean(normal(source), spellings)}")
    return next(iter(meant))
