"""Token targets on pictures, against their dense form."""

import numpy as np
import torch
from PIL import Image

from alltokens.explain.label_maps import STRONGEST
from alltokens.explain.target_maps import NONE, UNNAMED, TargetMap, draw_targets, shared_colours, target_maps
from alltokens.geometry.view import View
from alltokens.labels.align import token_targets
from alltokens.labels.score_map import ScoreMap


def some_map(seed: int) -> ScoreMap:
    return ScoreMap.from_dense(4 * torch.randn(9, 6, 6, generator=torch.Generator().manual_seed(seed)).abs(), top_k=3)


def test_the_first_class_of_a_token_is_that_of_its_dense_target():
    views = [View.of(60, 60).crop(5, 9, 40, 30).resize(32, 32).hflip(), View.of(60, 60).resize(32, 32)]
    targets = token_targets([some_map(0), some_map(1)], views, (4, 4), 9, smoothing=0.1)
    certainty, first = targets.dense().max(-1)
    for row, one in enumerate(target_maps(targets, (4, 4))):
        assert one.first.flatten().tolist() == first[row].tolist()
        torch.testing.assert_close(one.certainty.flatten(), certainty[row])


def test_a_token_beyond_the_image_has_no_class_and_shows_the_image():
    view = View.of(32, 32).translate(16, 0)
    (one,) = target_maps(token_targets([some_map(0)], [view], (2, 2), 9), (2, 2))
    assert (one.first[:, 0] == NONE).all()
    assert (one.first[:, 1] != NONE).all()
    picture = draw_targets(Image.new("RGB", (32, 32), (10, 200, 30)), one, shared_colours([one]), 4)
    assert np.asarray(picture)[0, 0].tolist() == [10, 200, 30]
    assert np.asarray(picture)[0, 31].tolist() != [10, 200, 30]


def test_a_target_below_the_classes_that_it_does_not_name_has_no_first_class():
    below = ScoreMap(torch.tensor([[[4]]]), torch.tensor([[[-3.0]]]), torch.tensor([[2.0]]))
    (one,) = target_maps(token_targets([below], [View.of(8, 8)], (1, 1), 9), (1, 1))
    assert one.first.tolist() == [[NONE]]
    assert one.certainty.tolist() == [[0.0]]
    assert one.shares() == []


def test_shares_are_of_all_tokens_the_most_frequent_first():
    one = TargetMap(torch.tensor([[5, 3, 3], [NONE, 3, 5]]), torch.ones(2, 3))
    assert one.shares() == [(3, 3 / 6), (5, 2 / 6)]


def test_a_class_has_one_colour_on_all_maps_and_those_without_a_line_are_grey():
    maps = [
        TargetMap(torch.tensor([[1, 1, 2, 7]]), torch.ones(1, 4)),
        TargetMap(torch.tensor([[2, 2]]), torch.ones(1, 2)),
    ]
    colours = shared_colours(maps)
    pictures = [np.asarray(draw_targets(Image.new("RGB", (8, 2)), one, colours, 2)).astype(float) for one in maps]
    np.testing.assert_allclose(pictures[0][0, 0], STRONGEST * np.array(colours[1]), atol=2)
    np.testing.assert_allclose(pictures[0][0, 4], STRONGEST * np.array(colours[2]), atol=2)
    np.testing.assert_allclose(pictures[0][0, 7], STRONGEST * np.array(UNNAMED), atol=2)
    np.testing.assert_allclose(pictures[1][0, 0], STRONGEST * np.array(colours[2]), atol=2)
