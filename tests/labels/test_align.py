"""Aligned targets against torchvision's RoIAlign of the dense score map and against a loop over every point."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torchvision.ops import roi_align

from alltokens.errors import UserError
from alltokens.geometry.view import View
from alltokens.labels.align import SparseTargets, image_targets, token_targets, view_targets
from alltokens.labels.score_map import ScoreMap, ScoreMaps

from .score_maps import (
    LargestTensor,
    cell_average,
    crop_view,
    dense_logits,
    dense_probabilities,
    difference,
    random_maps,
    turned_views,
)

CROPS = [(0.0, 0.0, 1.0, 1.0), (0.1, 0.2, 0.6, 0.5), (0.45, 0.02, 0.3, 0.9), (0.5, 0.5, 0.03, 0.02)]


def aligned_by_torchvision(maps: ScoreMaps, crops: list, grid: tuple[int, int], classes: int) -> Tensor:
    """RoIAlign of the zero-filled logits, [b, n, classes]."""
    h, w = maps.normalizer.shape[1:]
    boxes = [[i, left * w, top * h, (left + width) * w, (top + height) * h] for i, (top, left, height, width) in crops]
    boxes = torch.tensor(boxes, dtype=maps.logits.dtype)
    dense = dense_logits(maps, classes)
    return roi_align(dense, boxes, grid, sampling_ratio=2, aligned=True).flatten(2).mT


@pytest.mark.parametrize("size", [(18, 18), (7, 12), (1, 5)])
@pytest.mark.parametrize("grid", [(14, 14), (3, 8), (1, 1), (24, 20)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_views_along_the_axes_equal_roi_align(
    size: tuple[int, int], grid: tuple[int, int], dtype: torch.dtype, tolerance: float
) -> None:
    maps = random_maps(len(CROPS), 5, *size, classes=30, dtype=dtype)
    views = torch.stack([crop_view(*crop, dtype=dtype) for crop in CROPS])
    ours = token_targets(maps, views, grid, classes=30)
    theirs = aligned_by_torchvision(maps, list(enumerate(CROPS)), grid, 30).softmax(-1)
    assert ours.labelled.all()
    assert (ours.dense() - theirs).abs().max() < tolerance
    assert difference(ours.dense(), theirs) < tolerance


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 200)])
def test_a_view_made_step_by_step_equals_roi_align(height: int, width: int) -> None:
    score_map = ScoreMap.from_dense(4 * torch.randn(20, 18, 18))
    view = View.of(height, width).crop(30, 20, 150, 160).resize(224, 160)
    crop = 30 / height, 20 / width, 150 / height, 160 / width
    theirs = aligned_by_torchvision(ScoreMaps.stack([score_map]), [(0, crop)], (14, 10), 20).softmax(-1)
    ours = token_targets([score_map], [view], grid=(14, 10), classes=20).dense()
    assert (ours - theirs).abs().max() < 1e-5
    flipped = token_targets([score_map], [view.hflip()], grid=(14, 10), classes=20).dense()
    assert (flipped.unflatten(1, (14, 10)).flip(2).flatten(1, 2) - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("rule", ["zero_fill", "probabilities"])
@pytest.mark.parametrize(("classes", "k"), [(9, 3), (40, 5), (6, 1)])
def test_turned_and_sheared_views_equal_a_loop_over_points(rule: str, classes: int, k: int) -> None:
    maps, views = random_maps(4, k, 6, 9, classes, torch.float64), turned_views(torch.float64)
    ours = token_targets(maps, views, (5, 4), classes, rule)
    dense = dense_logits(maps, classes) if rule == "zero_fill" else dense_probabilities(maps, classes)
    mean, labelled = cell_average(dense, views, (5, 4))
    theirs = mean.softmax(-1) if rule == "zero_fill" else mean
    assert torch.equal(ours.labelled, labelled)
    assert not labelled.all()
    assert difference(ours.dense()[labelled], theirs[labelled]) < 1e-12


@pytest.mark.parametrize("rule", ["zero_fill", "probabilities"])
def test_half_precision_maps_lose_only_their_own_rounding(rule: str) -> None:
    maps = random_maps(4, 5, 6, 9, 40)
    half = replace(
        maps, classes=maps.classes.to(torch.int16), logits=maps.logits.half(), normalizer=maps.normalizer.half()
    )
    rounded = replace(maps, logits=half.logits.float(), normalizer=half.normalizer.float())
    views = turned_views(torch.float32)
    ours, theirs = (token_targets(x, views, (5, 4), 40, rule).dense() for x in (half, rounded))
    assert ours.dtype == torch.float32
    assert difference(ours, theirs) < 1e-6


def test_a_class_met_in_every_cell_is_merged_before_the_exponential() -> None:
    logits = torch.tensor([[[3.0, 1.0], [5.0, 7.0]]])
    score_map = ScoreMap(torch.full((1, 2, 2), 2), logits, logits[0] + 1)
    targets = token_targets([score_map], [View.of(2, 2)], grid=(1, 1), classes=4)
    expected = torch.tensor([0.0, 0.0, 4.0, 0.0]).softmax(0)
    torch.testing.assert_close(targets.dense()[0, 0], expected)
    assert (targets.values != 0).sum() == 1


def test_a_class_has_one_value_a_token() -> None:
    targets = token_targets(random_maps(2, 3, 5, 5, 6), turned_views(torch.float32)[:2], (3, 3), 6)
    for ids, values in zip(targets.ids.flatten(0, 1), targets.values.flatten(0, 1), strict=True):
        named = ids[values != 0].tolist()
        assert len(named) == len(set(named))


@pytest.mark.parametrize("rule", ["zero_fill", "probabilities"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_targets_sum_to_one_and_unlabelled_tokens_have_none(rule: str, smoothing: float) -> None:
    targets = token_targets(random_maps(4, 5, 6, 9, 40), turned_views(torch.float32), (5, 4), 40, rule, smoothing)
    torch.testing.assert_close(targets.dense().sum(-1), targets.labelled.float())
    assert targets.dense().min() >= 0


def test_large_logits_do_not_overflow() -> None:
    score_map = ScoreMap(torch.tensor([[[1]], [[2]]]), torch.tensor([[[300.0]], [[-300.0]]]), torch.tensor([[300.0]]))
    dense = token_targets([score_map], [View.of(8, 8)], grid=(1, 1), classes=4).dense()
    assert dense.tolist() == [[[0.0, 1.0, 0.0, 0.0]]]


def test_rounded_probabilities_above_one_are_brought_back_to_one() -> None:
    score_map = ScoreMap(torch.tensor([[[1]], [[2]]]), torch.zeros(2, 1, 1), torch.full((1, 1), 0.65))
    dense = token_targets([score_map], [View.of(8, 8)], grid=(1, 1), classes=4, rule="probabilities").dense()
    torch.testing.assert_close(dense, torch.tensor([[[0.0, 0.5, 0.5, 0.0]]]))


def test_all_classes_may_be_kept() -> None:
    logits = torch.randn(3, 2, 2)
    score_map = ScoreMap.from_dense(logits, top_k=3)
    dense = token_targets([score_map], [View.of(8, 8)], grid=(1, 1), classes=3, rule="probabilities").dense()
    torch.testing.assert_close(dense[0, 0], logits.softmax(0).mean((1, 2)))


@pytest.mark.parametrize("rule", ["zero_fill", "probabilities"])
def test_smoothing_spreads_mass_evenly(rule: str) -> None:
    maps, views = random_maps(4, 5, 6, 9, 40), turned_views(torch.float32)
    sharp = token_targets(maps, views, (5, 4), 40, rule)
    smooth = token_targets(maps, views, (5, 4), 40, rule, smoothing=0.1).dense()
    expected = (0.9 * sharp.dense() + 0.1 / 40) * sharp.labelled[..., None]
    torch.testing.assert_close(smooth, expected)


def test_points_beyond_the_image_do_not_count() -> None:
    maps = random_maps(1, 5, 12, 12, 20)
    # The canvas starts a whole image left of the image: its second half is the image, and its first is nothing.
    beyond = torch.tensor([[[2.0, 0, -1.0], [0, 1, 0]]])
    targets = token_targets(maps, beyond, (4, 8), 20)
    inside = token_targets(maps, crop_view(0, 0, 1, 1)[None], (4, 4), 20)
    assert targets.labelled.unflatten(1, (4, 8)).tolist() == [[[False] * 4 + [True] * 4] * 4]
    torch.testing.assert_close(targets.dense().unflatten(1, (4, 8))[:, :, 4:].flatten(1, 2), inside.dense())


def test_a_token_half_beyond_the_image_takes_the_other_half() -> None:
    logits = torch.tensor([[[2.0] * 4]])
    score_map = ScoreMap(torch.zeros(1, 1, 4, dtype=torch.int64), logits, logits[0] + 1)
    half = token_targets([score_map], [View.of(4, 4).translate(2, 0)], grid=(1, 1), classes=3)
    torch.testing.assert_close(half.dense()[0, 0], torch.tensor([2.0, 0.0, 0.0]).softmax(0))


def test_an_annotator_that_saw_a_part_labels_that_part() -> None:
    seen, view = View.of(100, 200).crop(0, 50, 100, 100).resize(64, 64), View.of(100, 200).crop(20, 70, 60, 40)
    whole = ScoreMap.from_dense(4 * torch.randn(12, 8, 8))
    part = ScoreMap(whole.classes, whole.logits, whole.normalizer, seen.normalized())
    ours = token_targets([part], [view], grid=(3, 2), classes=12)
    same_place = token_targets([whole], [View.of(100, 100).crop(20, 20, 60, 40)], grid=(3, 2), classes=12)
    torch.testing.assert_close(ours.dense(), same_place.dense())
    corner = token_targets([part], [View.of(100, 200).crop(0, 0, 20, 20)], grid=(1, 1), classes=12)
    assert not corner.labelled.any()


@pytest.mark.parametrize("rule", ["zero_fill", "probabilities"])
def test_maps_of_different_grids_in_one_batch_give_what_each_gives_alone(rule: str) -> None:
    maps = [ScoreMap.from_dense(4 * torch.randn(9, h, w, dtype=torch.float64)) for h, w in ((3, 8), (6, 4), (5, 5))]
    views = [View.of(40, 60).crop(-4, 10, 30, 55).resize(32, 32).rotate(20), View.of(60, 40), View.of(9, 9).hflip()]
    together = token_targets(maps, views, grid=(4, 5), classes=9, rule=rule)
    for index, (score_map, view) in enumerate(zip(maps, views, strict=True)):
        alone = token_targets([score_map], [view], grid=(4, 5), classes=9, rule=rule)
        torch.testing.assert_close(together.dense()[index], alone.dense()[0])
        assert together.labelled[index].equal(alone.labelled[0])


@pytest.mark.parametrize("rule", ["zero_fill", "probabilities"])
def test_an_image_without_a_map_has_no_targets(rule: str) -> None:
    maps = random_maps(2, 3, 4, 4, classes=9)
    maps = replace(maps, grids=torch.tensor([[4, 4], [0, 0]]))
    targets = token_targets(maps, [View.of(20, 30), View.of(20, 30)], grid=(2, 2), classes=9, rule=rule)
    assert targets.labelled.tolist() == [[True] * 4, [False] * 4]
    assert targets.dense()[1].eq(0).all()


def test_autocast_leaves_targets_alone() -> None:
    maps, views = random_maps(4, 5, 6, 9, 40), turned_views(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        rough = token_targets(maps, views, (5, 4), 40)
    assert torch.equal(rough.dense(), token_targets(maps, views, (5, 4), 40).dense())


@pytest.mark.parametrize("rule", ["zero_fill", "probabilities"])
def test_nothing_grows_with_the_number_of_classes(rule: str) -> None:
    maps = random_maps(2, 5, 6, 6, 40)
    far = replace(maps, classes=maps.classes * 2500)
    with LargestTensor() as largest:
        targets = token_targets(far, turned_views(torch.float32)[:2], (7, 7), 100_000, rule, smoothing=0.1)
    assert largest.values == targets.ids.numel() == 2 * 49 * 4 * 4 * 5
    assert targets.dense().shape == (2, 49, 100_000)


def test_every_tensor_of_the_targets_can_be_changed_alike() -> None:
    targets = token_targets(random_maps(2, 2, 3, 3, 5), crop_view(0, 0, 1, 1).repeat(2, 1, 1), (2, 2), 5)
    assert torch.equal(targets.each(lambda x: x.flip(0)).dense(), targets.dense().flip(0))


def test_targets_move_between_devices() -> None:
    targets = token_targets(random_maps(1, 2, 3, 3, 5), crop_view(0, 0, 1, 1)[None], (2, 2), 5).to("meta")
    assert all(x.is_meta for x in (targets.ids, targets.values, targets.floor, targets.labelled))


def test_the_whole_view_of_the_whole_image_is_the_mean_of_the_map() -> None:
    maps = random_maps(2, 5, 6, 9, 40, torch.float64)
    targets = view_targets(maps, torch.eye(2, 3, dtype=torch.float64).repeat(2, 1, 1), 40)
    expected = dense_logits(maps, 40).mean((2, 3)).softmax(-1)
    assert difference(targets.dense()[:, 0], expected) < 1e-12


def test_the_whole_view_of_a_crop_equals_roi_align() -> None:
    maps = random_maps(1, 5, 6, 6, 12)
    box = torch.tensor([[0, 1.2, 0.6, 4.8, 5.4]])
    theirs = roi_align(dense_logits(maps, 12), box, 1, sampling_ratio=6, aligned=True)[:, :, 0, 0].softmax(-1)
    ours = view_targets(maps, crop_view(0.1, 0.2, 0.8, 0.6)[None], 12).dense()[:, 0]
    assert (ours - theirs).abs().max() < 1e-5


def whole_view() -> SparseTargets:
    """Two images; the second view shows nothing of its image."""
    views = torch.stack([crop_view(0.1, 0.2, 0.5, 0.5), crop_view(3, 3, 1, 1)])
    return view_targets(random_maps(2, 5, 6, 6, 12), views, 12, "probabilities")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_image_target_is_the_class_label_unless_said_otherwise(smoothing: float) -> None:
    target = image_targets(torch.tensor([3, 0]), 12, smoothing=smoothing)
    expected = torch.full((2, 12), smoothing / 12)
    expected[0, 3] += 1 - smoothing
    expected[1, 0] += 1 - smoothing
    torch.testing.assert_close(target, expected)


def test_the_image_target_may_be_the_score_map_over_the_view() -> None:
    target = image_targets(torch.tensor([3, 7]), 12, "score_map", whole_view())
    torch.testing.assert_close(target[0], whole_view().dense()[0, 0])
    assert target[1].tolist() == [0.0] * 7 + [1.0] + [0.0] * 4


def test_the_blend_trusts_the_class_label_where_the_map_disagrees() -> None:
    mapped = whole_view().dense()[0, 0]
    target = image_targets(torch.tensor([3, 7]), 12, "blend", whole_view(), smoothing=0.1)
    expected = mapped[3] * mapped
    expected[3] += 1 - mapped[3]
    torch.testing.assert_close(target[0], 0.9 * expected + 0.1 / 12)
    torch.testing.assert_close(target.sum(1), torch.ones(2))
    assert target[1].argmax() == 7


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"grid": (0, 4)}, "a grid needs at least one row and one column of tokens; got grid=(0, 4)"),
        ({"smoothing": 1.0}, "smoothing must be at least 0 and below 1; got smoothing=1.0"),
        ({"classes": 5}, "class ids of a score map must be below classes=5; got 5"),
        ({"views": []}, "each score map needs a view; got 1 score maps and 0 views"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(changed: dict, sentence: str) -> None:
    ids = torch.tensor([[[2]], [[5]]])
    score_map = ScoreMap(ids, ids.float(), torch.full((1, 1), 9.0))
    arguments = {"score_maps": [score_map], "views": [View.of(8, 8)], "grid": (4, 4), "classes": 6, "smoothing": 0.0}
    with pytest.raises(UserError) as error:
        token_targets(**(arguments | changed))
    assert str(error.value) == sentence


@pytest.mark.parametrize(("choice", "given", "word"), [("class_label", True, "with"), ("blend", False, "without")])
def test_the_whole_view_goes_with_the_choices_that_use_it(choice: str, given: bool, word: str) -> None:
    with pytest.raises(UserError) as error:
        image_targets(torch.tensor([3, 7]), 12, choice, whole_view() if given else None)
    sentence = f"whole_view goes with the choices score_map and blend, and with no other; got {choice} {word} it"
    assert str(error.value) == sentence


def test_image_targets_check_their_smoothing() -> None:
    with pytest.raises(UserError, match=r"^smoothing must be at least 0 and below 1; got smoothing=-0[.]1$"):
        image_targets(torch.tensor([3, 7]), 12, smoothing=-0.1)


@pytest.mark.parametrize(
    "make", [view_targets, lambda maps, views, classes, rule: token_targets(maps, views, (2, 2), classes, rule)]
)
def test_a_mistyped_rule_is_refused_with_the_closest(make):
    maps = random_maps(1, 2, 3, 3, classes=5)
    sentence = r"^rule must be one of zero_fill, probabilities; got 'zerofill'; did you mean zero_fill\?$"
    with pytest.raises(UserError, match=sentence):
        make(maps, torch.eye(2, 3)[None], 5, rule="zerofill")
