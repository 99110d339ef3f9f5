"""How well labels agree with a data set's classes, and with the rule that makes targets of them."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from alltokens.labels.agreement import named_right, warn_below_zero
from alltokens.labels.record import encode
from alltokens.labels.score_map import ScoreMap, ScoreMaps
from alltokens.labels.shards import begin, finish, write_shard
from alltokens.labels.store import LabelStore
from alltokens.sources.source import Source

from .stores import BROKEN, CLASSES, KEYS, no_image, plan_for, write_store

WARNING = (
    "the logits of annotator 'tiny' lie below zero, where zero_fill takes named classes for less likely than all "
    "others; train with --objective.rule probabilities"
)


def logits_of(row: int, shift: float) -> Tensor:
    """The image's own class before all others in each of 2 x 3 cells, everything shifted alike."""
    logits = torch.randn(len(CLASSES), 2, 3, generator=torch.Generator().manual_seed(row))
    logits[row % len(CLASSES)] += 6
    return logits - logits.amax() + shift


def store_of(folder: Path, shift: float, top_k: int = 3) -> LabelStore:
    """Maps of all images, the highest logit of each at the shift."""
    plan = plan_for(top_k=top_k, records_per_shard=len(KEYS))
    maps = [ScoreMap.from_dense(logits_of(row, shift), top_k) for row in range(len(KEYS))]
    begin(folder, plan)
    write_shard(folder, 0, encode(ScoreMaps.stack(maps), plan.dtype), {})
    finish(folder, plan, KEYS)
    return LabelStore(folder)


def warnings_of(store: LabelStore) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_below_zero(store)
    return [str(one.message) for one in caught]


def source() -> Source:
    return Source("photos", KEYS, [row % len(CLASSES) for row in range(len(KEYS))], CLASSES, no_image)


def test_images_whose_map_puts_their_class_first_are_counted(tmp_path: Path) -> None:
    assert named_right(store_of(tmp_path / "labels", 8.0), source()) == 1.0


def test_a_class_that_is_less_likely_than_those_not_named_is_not_first(tmp_path: Path) -> None:
    assert named_right(store_of(tmp_path / "labels", -2.0), source()) == 0.0


def test_where_all_classes_are_named_a_shift_changes_nothing(tmp_path: Path) -> None:
    assert named_right(store_of(tmp_path / "labels", -2.0, top_k=len(CLASSES)), source()) == 1.0


def test_images_without_labels_are_not_counted(tmp_path: Path) -> None:
    store = LabelStore(write_store(tmp_path / "labels"))
    keys = [KEYS[row] for row in BROKEN]
    assert named_right(store, Source("photos", keys, [0] * len(keys), CLASSES, no_image)) == 0.0
    assert warnings_of(store) == []


@pytest.mark.parametrize(("shift", "top_k", "expected"), [(8.0, 3, []), (-2.0, 3, [WARNING]), (-2.0, len(CLASSES), [])])
def test_logits_below_zero_are_warned_of_where_classes_are_filled_in(
    tmp_path: Path, shift: float, top_k: int, expected: list[str]
) -> None:
    assert warnings_of(store_of(tmp_path / "labels", shift, top_k)) == expected
