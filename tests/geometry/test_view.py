"""A view's map against torchvision's operations, and the algebra of views."""

from dataclasses import FrozenInstanceError
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as TF

from alltokens.errors import UserError
from alltokens.geometry.view import View

SIZES = [(12, 12), (12, 16), (16, 12), (7, 21)]
BILINEAR = InterpolationMode.BILINEAR


def affine(image, translate=(0, 0), shear=(0.0, 0.0)):
    return TF.affine(image, 0.0, list(translate), 1.0, list(shear), BILINEAR, fill=0)


# Of each operation: the view's, torchvision's on pixels, and numbers to try it with on a canvas of this size.
OPERATIONS = {
    "crop": (
        View.crop,
        TF.crop,
        lambda draw, h, w: (draw.randint(0, h - 3), draw.randint(0, w - 3), draw.randint(1, h), draw.randint(1, w)),
    ),
    "crop that reaches outside": (View.crop, TF.crop, lambda draw, h, w: (-draw.randint(1, 4), -5, h + 5, w + 7)),
    "resize": (
        View.resize,
        lambda image, h, w: TF.resize(image, [h, w], BILINEAR, antialias=False),
        lambda draw, h, w: (draw.randint(5, 40), draw.randint(5, 40)),
    ),
    "hflip": (View.hflip, TF.horizontal_flip, lambda draw, h, w: ()),
    "vflip": (View.vflip, TF.vertical_flip, lambda draw, h, w: ()),
    "rotate": (
        View.rotate,
        lambda image, degrees: TF.rotate(image, degrees, BILINEAR),
        lambda draw, h, w: (draw.uniform(-180, 180),),
    ),
    "rotate by a right angle": (
        View.rotate,
        lambda image, degrees: TF.rotate(image, degrees, BILINEAR),
        lambda draw, h, w: (draw.choice([-90, 90, 180, 270]),),
    ),
    "shear": (
        View.shear,
        lambda image, x, y: affine(image, shear=(x, y)),
        lambda draw, h, w: (draw.uniform(-40, 40), draw.uniform(-40, 40)),
    ),
    "translate": (
        View.translate,
        lambda image, x, y: affine(image, translate=(x, y)),
        lambda draw, h, w: (draw.uniform(-3, 3), draw.uniform(-3, 3)),
    ),
}


def centres(height, width):
    """The points (x, y) at the pixels' centres, [2, height, width]."""
    y, x = np.mgrid[:height, :width] + 0.5
    return np.stack((x, y))


def mapped(view):
    """Where the view sends the centre of each canvas pixel, [2, height, width]."""
    x, y = centres(*view.size)
    (a, b, e), (c, d, f) = view.matrix
    return np.stack((a * x + b * y + e, c * x + d * y + f))


def distance_from_torchvision(view, operation, numbers):
    """The farthest a point is off an image of coordinates that went through torchvision, its outermost pixels aside.

    Between pixel centres bilinear interpolation gives coordinates back exactly.
    """
    seen = operation(torch.from_numpy(centres(*view.source)), *numbers).numpy()
    assert seen.shape[1:] == view.size
    points = mapped(view)
    height, width = view.source
    edge = 0.5 + 1e-9
    inner = (points > edge) & (points < np.array([width, height])[:, None, None] - edge)
    return np.abs(points - seen)[:, inner.all(0)].max(initial=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_maps_points_as_torchvision_does(name, size):
    ours, theirs, numbers_for = OPERATIONS[name]
    for seed in range(10):
        numbers = numbers_for(Random(seed), *size)
        assert distance_from_torchvision(ours(View.of(*size), *numbers), theirs, numbers) < 1e-6


@pytest.mark.parametrize("name", OPERATIONS)
def test_exchanging_x_and_y_is_noticed(name):
    ours, theirs, numbers_for = OPERATIONS[name]
    numbers = numbers_for(Random(3), 12, 16)
    view = ours(View.of(12, 16), *numbers)
    (a, b, e), (c, d, f) = view.matrix
    exchanged = View(view.source, view.size, ((d, c, f), (b, a, e)))
    assert distance_from_torchvision(exchanged, theirs, numbers) > 0.1


def test_affine_takes_pillows_matrix():
    # Pillow's shear by a factor about the top left corner, as timm draws it.
    view = View.of(6, 8).affine(((1, 0.5, 0), (0, 1, 0)))
    assert mapped(view)[:, 3, 2].tolist() == [2.5 + 0.5 * 3.5, 3.5]
    assert view.size == (6, 8)


# The algebra

numbers = st.floats(-30, 30, allow_subnormal=False)
sides = st.integers(1, 40)
steps = st.one_of(
    st.tuples(st.just("crop"), numbers, numbers, sides, sides),
    st.tuples(st.just("resize"), sides, sides),
    st.tuples(st.sampled_from(["hflip", "vflip"])),
    st.tuples(st.just("rotate"), st.floats(-180, 180, allow_subnormal=False)),
    st.tuples(st.just("shear"), numbers, numbers),
    st.tuples(st.just("translate"), numbers, numbers),
)
chains = st.lists(steps, max_size=4)


def follow(view, chain):
    for name, *values in chain:
        view = getattr(view, name)(*values)
    return view


def assert_same(left, right, within=1e-9):
    assert (left.source, left.size) == (right.source, right.size)
    scale = max(1.0, np.abs(left.matrix).max())
    np.testing.assert_allclose(left.matrix, right.matrix, rtol=0, atol=within * scale)


@given(sides, sides, chains)
def test_a_view_then_its_inverse_is_the_identity_on_the_image_and_on_the_canvas(height, width, chain):
    view = follow(View.of(height, width), chain)
    # Rounding grows with how much the map stretches one way and squeezes the other.
    linear = np.array(view.matrix)[:, :2]
    within = (
        1e-12 * np.linalg.cond(linear) * (1 + np.abs(view.matrix).max()) * (1 + np.abs(view.inverse().matrix).max())
    )
    assert_same(view.then(view.inverse()), View.of(height, width), within)
    assert_same(view.inverse().then(view), View.of(*view.size), within)


@pytest.mark.parametrize("size", SIZES)
def test_an_inverse_is_exact_to_nine_digits_for_every_aspect_ratio(size):
    view = View.of(*size).crop(1, 2, 5, 4).resize(9, 14).hflip().rotate(25).shear(10, -5).translate(1.5, -2)
    assert_same(view.then(view.inverse()), View.of(*size))
    assert_same(view.inverse().then(view), View.of(9, 14))


@given(sides, sides, chains, chains, chains)
def test_composition_is_associative(height, width, first, second, third):
    a = follow(View.of(height, width), first)
    b = follow(View.of(*a.size), second)
    c = follow(View.of(*b.size), third)
    assert_same(a.then(b).then(c), a.then(b.then(c)))


@given(sides, sides, chains, chains)
def test_a_chain_is_its_halves_one_after_the_other(height, width, first, second):
    half = follow(View.of(height, width), first)
    assert_same(follow(half, second), half.then(follow(View.of(*half.size), second)))


@given(sides, sides, chains)
def test_flipping_twice_and_turning_back_change_nothing(height, width, chain):
    view = follow(View.of(height, width), chain)
    assert_same(view.hflip().hflip().vflip().rotate(33).rotate(-33).vflip().translate(2, 3).translate(-2, -3), view)


@given(sides, sides, chains)
def test_normalized_is_the_same_map_between_unit_squares(height, width, chain):
    view = follow(View.of(height, width), chain)
    (h, w), points = view.size, mapped(view)
    unit = centres(h, w) / np.array([w, h])[:, None, None]
    matrix = view.normalized().double().numpy()
    expected = points / np.array([width, height])[:, None, None]
    seen = np.einsum("rc,chw->rhw", matrix[:, :2], unit) + matrix[:, 2, None, None]
    np.testing.assert_allclose(seen, expected, rtol=0, atol=1e-6 * max(1, np.abs(matrix).max()))


@given(sides, sides, st.lists(steps.filter(lambda step: step[0] not in ("rotate", "shear")), max_size=4))
def test_a_view_without_rotation_or_shear_is_axis_aligned(height, width, chain):
    assert follow(View.of(height, width), chain).is_axis_aligned


def test_rotation_and_shear_are_not_axis_aligned_until_undone():
    view = View.of(12, 16).resize(20, 9)
    assert not view.rotate(1).is_axis_aligned
    assert not view.rotate(90).is_axis_aligned
    assert not view.shear(1, 0).is_axis_aligned
    assert not view.shear(0, 1).is_axis_aligned
    assert view.rotate(180).is_axis_aligned
    assert view.rotate(20).rotate(-20).is_axis_aligned


def test_a_view_is_immutable_and_can_be_a_key():
    view = View.of(12, 16)
    assert {view: 1}[View.of(12, 16)] == 1
    with pytest.raises(FrozenInstanceError):
        view.size = (1, 1)


# What is refused

ERRORS = {
    "an image needs a height and width of at least 1; got 0 x 16": lambda view: View.of(0, 16),
    "a canvas needs a height and width of at least 1; got 3 x 0": lambda view: view.crop(0, 0, 3, 0),
    "a canvas needs a height and width of at least 1; got -3 x 4": lambda view: view.resize(-3, 4),
    "top and left of a crop must be finite; got nan, 0": lambda view: view.crop(float("nan"), 0, 3, 3),
    "degrees of a rotation must be finite; got inf": lambda view: view.rotate(float("inf")),
    "degrees of a shear must be finite; got 0, -inf": lambda view: view.shear(0, float("-inf")),
    "degrees of a shear must lie between -90 and 90; got 90 and 0": lambda view: view.shear(90, 0),
    "x and y of a translation must be finite; got inf, 0": lambda view: view.translate(float("inf"), 0),
    "an affine map must be finite; got 1, 0, nan, 0, 1, 0": lambda view: view.affine(((1, 0, float("nan")), (0, 1, 0))),
    "the matrix of a view must be finite; got 1.0, 0.0, 0.0, 0.0, inf, 0.0": lambda view: View(
        view.source, view.size, ((1.0, 0.0, 0.0), (0.0, float("inf"), 0.0))
    ),
    "the matrix of a view must be invertible; got ((1.0, 2.0, 0.0), (2.0, 4.0, 0.0)), which is singular": lambda view: (
        view.affine(((1, 2, 0), (2, 4, 0)))
    ),
    "a view of 16 x 12 pixels cannot follow one whose canvas is 12 x 16; start it from that size": lambda view: (
        view.then(View.of(16, 12))
    ),
}


@pytest.mark.parametrize("sentence", ERRORS)
def test_what_makes_no_view_is_refused_in_one_sentence(sentence):
    with pytest.raises(UserError) as error:
        ERRORS[sentence](View.of(12, 16))
    assert str(error.value) == sentence


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_coarser_image_is_seen_at_the_same_points(factor):
    view = View.of(37, 50).crop(3, 5, 20, 30).resize(11, 13).rotate(20)
    coarser = view.coarser(factor)
    assert (coarser.size, coarser.source) == (view.size, (-(-37 // factor), -(-50 // factor)))
    np.testing.assert_allclose(factor * np.array(coarser.matrix), view.matrix, rtol=0, atol=1e-12)
    assert view.coarser(1) == view


def test_a_part_of_an_image_is_seen_at_the_same_points():
    view = View.of(37, 50).crop(3, 5, 20, 30).resize(11, 13).rotate(20)
    part = view.within(4, 7, 30, 40)
    assert (part.size, part.source) == (view.size, (30, 40))
    moved = np.array([[0, 0, 7], [0, 0, 4]])
    np.testing.assert_allclose(np.array(part.matrix) + moved, view.matrix, rtol=0, atol=1e-12)
