"""Steps of a view against timm's functions that move pixels of a Pillow image."""

from functools import cache

import numpy as np
import pytest
from PIL import Image
from timm.data import auto_augment

from alltokens.augment.geometric import GEOMETRIC
from alltokens.geometry.view import View

SIZES = [(40, 40), (30, 48), (48, 30), (24, 72)]
ARGUMENTS: dict[str, list[float]] = {
    "shear_x": [0.3, -0.3, 0.07],
    "shear_y": [0.3, -0.3, 0.07],
    "translate_x_abs": [11.25, -7.5, 3.0],
    "translate_y_abs": [11.25, -7.5, 3.0],
    "translate_x_rel": [0.45, -0.2, 0.1],
    "translate_y_rel": [0.45, -0.2, 0.1],
    "rotate": [30.0, -17.3, 4.0],
}
each_size = pytest.mark.parametrize("size", SIZES)
each_step = pytest.mark.parametrize(
    ("kind", "argument"), [(kind, argument) for kind in ARGUMENTS for argument in ARGUMENTS[kind]]
)


def by_timm(kind: str, image: Image.Image, argument: float) -> np.ndarray:
    moved = getattr(auto_augment, kind)(image, argument, resample=Image.Resampling.BILINEAR)
    return np.asarray(moved).astype(float)


@cache
def coordinates(size: tuple[int, int]) -> tuple[Image.Image, Image.Image]:
    """Images of x and of y, in floats, so that what is seen says where it comes from."""
    y, x = (np.mgrid[: size[0], : size[1]] + 0.5).astype(np.float32)
    return Image.fromarray(x), Image.fromarray(y)


def mapped(view: View) -> tuple[np.ndarray, np.ndarray]:
    """Where the view sends the centre of each canvas pixel."""
    y, x = np.mgrid[: view.size[0], : view.size[1]] + 0.5
    (a, b, e), (c, d, f) = view.matrix
    return a * x + b * y + e, c * x + d * y + f


def inside(view: View, margin: float) -> np.ndarray:
    """Canvas pixels that show a point this far inside the image."""
    x, y = mapped(view)
    height, width = view.source
    return (x > margin) & (x < width - margin) & (y > margin) & (y < height - margin)


@each_size
@each_step
def test_a_step_maps_points_as_timm_does(kind: str, argument: float, size: tuple[int, int]) -> None:
    view = GEOMETRIC[kind](View.of(*size), argument)
    seen = [by_timm(kind, image, argument) for image in coordinates(size)]
    interior = inside(view, margin=1.0)
    assert view.size == size
    assert interior.mean() > 0.3
    # Pillow's maps are in single precision.
    for ours, theirs in zip(mapped(view), seen, strict=True):
        assert abs(ours - theirs)[interior].max() < 1e-3


@each_size
@each_step
def test_the_wrong_sign_or_the_other_axis_would_be_noticed(kind: str, argument: float, size: tuple[int, int]) -> None:
    seen = np.stack([by_timm(kind, image, argument) for image in coordinates(size)])
    other_axis = kind.replace("_x", "_?").replace("_y", "_x").replace("_?", "_y")
    wrong = [GEOMETRIC[kind](View.of(*size), -argument)]
    if other_axis != kind:
        wrong.append(GEOMETRIC[other_axis](View.of(*size), argument))
    for view in wrong:
        assert abs(np.stack(mapped(view)) - seen)[:, inside(view, margin=1.0)].max() > 1


@each_size
@each_step
def test_a_pattern_of_high_contrast_is_moved_as_timm_moves_it(
    kind: str, argument: float, size: tuple[int, int]
) -> None:
    y, x = np.mgrid[: size[0], : size[1]]
    checks = np.stack(((x // 5 + y // 7) % 2, (x // 4) % 2, (y // 6) % 2), 2) * 255
    image = Image.fromarray(checks.astype(np.uint8))
    view = GEOMETRIC[kind](View.of(*size), argument)
    ours = np.asarray(view.apply(image, "bilinear")).astype(int)
    difference = abs(ours - by_timm(kind, image, argument))
    assert difference[inside(view, margin=1.0)].max() <= 2


def test_steps_one_after_the_other_are_timms_functions_in_that_order() -> None:
    size, steps = (36, 54), [("rotate", 13.0), ("shear_x", 0.2), ("translate_y_rel", -0.15), ("shear_y", -0.1)]
    view, images = View.of(*size), list(coordinates(size))
    for kind, argument in steps:
        view = GEOMETRIC[kind](view, argument)
        images = [Image.fromarray(by_timm(kind, image, argument).astype(np.float32)) for image in images]
    # What a step before had moved out of the canvas is lost in the one and not in the other.
    known = inside(view, margin=2.0) & (np.asarray(images[0]) > 3) & (np.asarray(images[1]) > 3)
    distance = np.hypot(*(ours - theirs for ours, theirs in zip(mapped(view), map(np.asarray, images), strict=True)))
    assert known.mean() > 0.4
    assert np.quantile(distance[known], 0.9) < 1e-3


def test_a_share_is_of_the_canvas_as_it_then_is() -> None:
    view = View.of(40, 40).resize(20, 60)
    across, down = (GEOMETRIC[f"translate_{axis}_rel"](view, 0.5) for axis in "xy")
    assert across.matrix == view.translate(-30, 0).matrix
    assert down.matrix == view.translate(0, -10).matrix
