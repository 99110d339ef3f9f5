"""A part of a data set held out: the same images each time, and the same share of every class."""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Generic, TypeVar

from alltokens.errors import require
from alltokens.sources.source import Computed, Source

Item = TypeVar("Item")


@dataclass(frozen=True)
class Chosen(Generic[Item]):
    """What the whole has for an image of the part; little to send to workers."""

    whole: Callable[[int], Item]
    rows: "array[int]"

    def __call__(self, index: int) -> Item:
        return self.whole(self.rows[index])


def hold_out(source: Source, share: float) -> tuple[Source, Source]:
    """The images to train on, and those held out: of every class the share, one at least, but never its last.

    Which ones they are depends on the keys of their class alone.
    """
    of_class: dict[int, list[int]] = {}
    for row, label in enumerate(source.labels):
        of_class.setdefault(label, []).append(row)
    held_out: set[int] = set()
    for rows in of_class.values():
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        held_out.update(sorted(rows, key=lambda row: lot(source.keys[row]))[:count])
    require(
        bool(held_out), f"no class of '{source.name}' has two images, so none can be held out; give validation images"
    )
    whole = range(len(source))
    return (
        part(source, (row for row in whole if row not in held_out)),
        part(source, (row for row in whole if row in held_out)),
    )


def part(source: Source, rows: Iterable[int]) -> Source:
    """Some of the images, with all of the classes."""
    places = array("q", rows)
    return replace(
        source,
        keys=Computed(len(places), Chosen(source.keys.__getitem__, places)),
        labels=array("i", (source.labels[row] for row in places)),
        load=Chosen(source.load, places),
    )


def lot(key: str) -> bytes:
    """By which images are chosen: a hash, as neighbours are often alike."""
    return blake2b(key.encode(), digest_size=8).digest()
