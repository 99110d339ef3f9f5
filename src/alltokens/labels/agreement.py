"""How well labels agree with the classes of the data set itself, and with what targets are made by."""

import warnings

import torch

from alltokens.labels.align import view_targets
from alltokens.labels.score_map import ScoreMaps, whole_image
from alltokens.labels.store import LabelStore
from alltokens.sources.source import Source

TOGETHER = 256
"""Maps averaged at once, and most that are looked at for a warning."""


def named_right(store: LabelStore, source: Source) -> float:
    """Share of the labelled images whose map, averaged over the whole image, puts their own class before all others.

    The data set's classes are among the store's.
    """
    place = {name: number for number, name in enumerate(store.classes)}
    own = torch.tensor([-1 if label < 0 else place[source.classes[label]] for label in source.labels])
    right = counted = 0
    for start in range(0, len(source), TOGETHER):
        maps = store.read(source.keys[start : start + TOGETHER])
        whole = whole_image().repeat(len(maps.logits), 1, 1)
        named = view_targets(maps, whole, len(store.classes))
        wanted = own[start : start + TOGETHER]
        known = named.labelled[:, 0] & (wanted >= 0)
        # Of all classes: those that no cell names may well be more likely than those that some do.
        each, at = named.dense()[:, 0], wanted.clamp(min=0)[:, None]
        first = each.gather(1, at)[:, 0] > each.scatter(1, at, -1).amax(1)
        right, counted = right + int(first[known].sum()), counted + int(known.sum())
    return right / max(counted, 1)


def warn_below_zero(store: LabelStore) -> None:
    """Where that is so by some of a store's maps, in one line."""
    keys = store.keys()
    warn_of_maps_below_zero(store.read(keys[:: -(-len(keys) // TOGETHER)]), store.plan.annotator, len(store.classes))


def warn_of_maps_below_zero(maps: ScoreMaps, annotator: str, classes: int) -> None:
    """The same of maps that are at hand."""
    if sentence := below_zero(maps, annotator, classes):
        warnings.warn(sentence, stacklevel=2)


def below_zero(maps: ScoreMaps, annotator: str, classes: int) -> str | None:
    """A warning where most cells of an annotator's maps would get targets that are turned upside down.

    The softmax that an annotator is trained with ignores a common shift of its logits; a sigmoid drives them below
    zero, which is what `zero_fill` takes unnamed classes for.
    """
    if maps.logits.shape[1] == classes:
        return None  # none is left to be filled in
    height, width = maps.normalizer.shape[1:]
    rows, columns = maps.grids[:, 0, None, None], maps.grids[:, 1, None, None]
    down, across = (torch.arange(side, device=rows.device) for side in (height, width))
    own = (down[:, None] < rows) & (across < columns)
    highest = maps.logits.amax(1)[own]
    if not len(highest) or float((highest > 0).float().mean()) >= 0.5:
        return None
    return (
        f"the logits of annotator '{annotator}' lie below zero, where zero_fill takes named classes for "
        "less likely than all others; train with --objective.rule probabilities"
    )
