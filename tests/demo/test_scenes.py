"""Scenes: one large digit that their class is of, small ones of other classes, the same each time."""

import numpy as np
import pytest

from alltokens.demo.scenes import HELD_OUT, MAIN, OTHERS, SIDE, Box, place, read_digits, scene, write_scenes
from alltokens.sources.source import open_source


@pytest.fixture(scope="module")
def digits():
    return read_digits()


def test_digits_to_train_on_and_held_out_ones_are_all_of_scikit_learns(digits):
    train, held_out = digits
    assert (len(train.classes), len(held_out.classes)) == (1797 - HELD_OUT, HELD_OUT)
    assert set(train.classes) == set(held_out.classes) == set(range(10))
    assert (train.ink.min(), train.ink.max()) == (0.0, 1.0)


def test_scenes_lie_in_folders_of_their_classes_and_are_the_same_each_time(tmp_path, digits):
    for name in ("one", "other"):
        write_scenes(tmp_path / name, digits[0], 30, seed=3)
    one, other = (open_source(str(tmp_path / name)) for name in ("one", "other"))
    assert len(one) == 30
    assert set(one.classes) <= set("0123456789")
    assert list(one.keys) == list(other.keys)
    for row in range(30):
        assert one.image(row).size == (SIDE, SIDE)
        assert one.image(row).tobytes() == other.image(row).tobytes()


def test_the_main_digit_is_where_a_scene_differs_most_from_one_without_it(digits):
    """Two scenes from one draw that differ in the ink of their main digit alone."""
    train, _ = digits
    blank = train.ink.copy()
    blank[5] = 0
    own = (scene(one, 5, np.random.default_rng(7)) for one in (train, type(train)(blank, train.classes)))
    there, without = (np.asarray(image, np.int64) for image in own)
    box = place_of_main(np.random.default_rng(7))
    changed = np.abs(there - without).sum(2) > 0
    assert changed.any()
    changed[box.top : box.top + box.side, box.left : box.left + box.side] = False
    assert not changed.any()


def place_of_main(draw: np.random.Generator) -> Box:
    """The ground is drawn first, then the place."""
    for cells in (2, 4, 16, 32):
        draw.uniform(size=(cells, cells, 3))
    return place(draw, MAIN)


def test_every_digit_is_inside_its_scene():
    draw = np.random.default_rng(0)
    for sides in (MAIN, OTHERS):
        for _ in range(200):
            box = place(draw, sides)
            assert sides[0] <= box.side <= sides[1]
            assert min(box.top, box.left) >= 0
            assert max(box.top, box.left) + box.side <= SIDE


@pytest.mark.parametrize(
    ("other", "pixels"),
    [(Box(0, 0, 4), 16), (Box(2, 1, 4), 6), (Box(4, 0, 3), 0), (Box(9, 9, 2), 0), (Box(1, 1, 2), 4)],
)
def test_shared_pixels_are_counted(other, pixels):
    ours = np.zeros((12, 12), bool)
    theirs = np.zeros((12, 12), bool)
    ours[:4, :4] = True
    theirs[other.top : other.top + other.side, other.left : other.left + other.side] = True
    assert (ours & theirs).sum() == pixels
    assert Box(0, 0, 4).shared(other) == pixels
