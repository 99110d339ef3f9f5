"""Pictures of score maps over their images."""

import numpy as np
import pytest
import torch
from PIL import Image

from alltokens.explain.label_maps import (
    LEGEND_LINES,
    PANEL,
    STRONGEST,
    class_colours,
    contact_sheet,
    draw_score_map,
    under_map,
)
from alltokens.labels.score_map import ScoreMap


def map_of(first: list[list[int]], logit: float = 40.0) -> ScoreMap:
    """A map whose cells are certain of these classes."""
    cells = torch.tensor(first)
    dense = torch.zeros(8, *cells.shape).scatter_(0, cells[None], logit)
    return ScoreMap.from_dense(dense, top_k=2)


def test_a_cell_has_the_colour_of_its_class_in_its_place():
    score_map = map_of([[3, 3, 5], [3, 3, 3]])
    colours = class_colours(score_map)
    picture = np.asarray(under_map(Image.new("RGB", (30, 20)), score_map, colours)).astype(float)
    for row, column, number in [(5, 5, 3), (5, 25, 5), (15, 25, 3)]:
        np.testing.assert_allclose(picture[row, column], STRONGEST * np.array(colours[number]), atol=2)


def test_a_cell_without_certainty_shows_the_image():
    flat = ScoreMap.from_dense(torch.zeros(1000, 1, 1), top_k=1)
    image = Image.new("RGB", (4, 4), (10, 200, 30))
    assert np.asarray(under_map(image, flat, class_colours(flat)))[0, 0].tolist() == [10, 200, 30]


def test_classes_come_in_the_order_of_their_cells_and_no_two_share_a_colour():
    colours = class_colours(map_of([[1, 2, 2], [2, 7, 7]]))
    assert list(colours) == [2, 7, 1]
    assert len(set(colours.values())) == 3


def test_a_picture_has_the_image_the_map_and_a_legend():
    described = []

    def describe(number: int) -> str:
        described.append(number)
        return "a class with a name that is far too long for one line of the legend " * 3

    picture = draw_score_map(Image.new("RGB", (100, 50)), map_of([[0, 1, 2, 3, 4, 5]]), describe)
    assert picture.width > 2 * PANEL
    assert picture.height > PANEL // 2
    assert len(described) == LEGEND_LINES


@pytest.mark.parametrize("size", [(2000, 2), (1, 3000)])
def test_a_thin_image_is_drawn_too(size: tuple[int, int]):
    drawn = draw_score_map(Image.new("RGB", size), map_of([[0, 1]]), str)
    assert drawn.height < 2000


def test_pictures_of_any_height_go_on_one_sheet():
    sheet = contact_sheet([Image.new("RGB", (50, height), (255, 0, 0)) for height in (10, 90, 30)], columns=2)
    assert sheet.width > 100
    assert sheet.height > 120
    assert (np.asarray(sheet)[..., 1] == 0).sum() == 50 * 130
