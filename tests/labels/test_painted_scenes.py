"""Coloured regions, score maps painted to match, and 504 random chains of operations: image, view and targets agree."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from alltokens.geometry.view import View
from alltokens.labels.align import token_targets
from alltokens.labels.score_map import ScoreMap

SIZES = [(144, 144), (108, 144), (144, 108), (144, 48)]
GRIDS = [(14, 14), (10, 18)]
CHAINS = 63
"""Of each size and grid."""
CELL = 3
"""Pixels: 48 cells on the longer side."""
PATCH = 8
"""Canvas pixels of a token."""
CLASSES = 100
CLASS_OF = np.array([41, 7, 93, 22, 68, 55, 80])
"""Of the background, then of each region; 0, which an unlabelled token would give, is none of them."""
COLOUR_OF = np.array(
    [(20, 20, 20), (230, 30, 40), (40, 220, 50), (30, 60, 240), (240, 230, 20), (20, 220, 230), (240, 240, 250)]
)

Step = tuple
"""A method of a view and what it is called with."""


@dataclass(frozen=True)
class Scene:
    """Turned rectangles and ellipses, painted one over the other."""

    size: tuple[int, int]
    regions: list[tuple[float, float, float, float, float, bool]]
    """x and y of the middle, two half axes, an angle, and whether it is an ellipse."""

    @staticmethod
    def draw(size: tuple[int, int], draw: Random) -> "Scene":
        height, width = size
        return Scene(
            size,
            [
                (
                    draw.uniform(0, width),
                    draw.uniform(0, height),
                    draw.uniform(0.2, 0.45) * max(size),
                    draw.uniform(0.2, 0.45) * min(size),
                    draw.uniform(0, math.pi),
                    draw.random() < 0.5,
                )
                for _ in range(draw.randint(3, 6))
            ],
        )

    def region_at(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The number of the region that covers each point, 0 being the background."""
        found = np.zeros(x.shape, dtype=int)
        for number, (middle_x, middle_y, length, breadth, angle, is_ellipse) in enumerate(self.regions, 1):
            u = ((x - middle_x) * math.cos(angle) + (y - middle_y) * math.sin(angle)) / length
            v = ((y - middle_y) * math.cos(angle) - (x - middle_x) * math.sin(angle)) / breadth
            covered = u * u + v * v <= 1 if is_ellipse else np.maximum(abs(u), abs(v)) <= 1
            found[covered] = number
        return found

    def painted(self, step: int) -> np.ndarray:
        """The region at the centre of every square of `step` pixels."""
        y, x = np.mgrid[: self.size[0] // step, : self.size[1] // step] * step + step / 2
        return self.region_at(x, y)

    def image(self) -> Image.Image:
        return Image.fromarray(COLOUR_OF[self.painted(1)].astype(np.uint8))

    def score_map(self) -> ScoreMap:
        """The class of the region first, any other second."""
        top = self.painted(CELL)
        second = (top + np.random.default_rng(0).integers(1, len(CLASS_OF), top.shape)) % len(CLASS_OF)
        classes = torch.from_numpy(CLASS_OF[np.stack((top, second))])
        logits = torch.tensor([8.0, 3.0])[:, None, None].expand(classes.shape)
        normalizer = torch.full(top.shape, math.log(math.exp(8) + math.exp(3) + CLASSES - 2))
        return ScoreMap(classes, logits, normalizer)


OPERATIONS: dict[str, Callable[[Random, int, int], tuple]] = {
    "crop": lambda draw, h, w: (
        draw.randint(0, h // 4),
        draw.randint(0, w // 4),
        draw.randint(h // 2, 3 * h // 4),
        draw.randint(w // 2, 3 * w // 4),
    ),
    "resize": lambda draw, h, w: (draw.randint(60, 150), draw.randint(60, 150)),
    "hflip": lambda draw, h, w: (),
    "vflip": lambda draw, h, w: (),
    "rotate": lambda draw, h, w: (draw.uniform(-90, 90),),
    "shear": lambda draw, h, w: (draw.uniform(-20, 20), draw.uniform(-20, 20)),
    "translate": lambda draw, h, w: (draw.uniform(-0.2, 0.2) * w, draw.uniform(-0.2, 0.2) * h),
    "affine": lambda draw, h, w: (
        (
            (draw.uniform(0.8, 1.2), draw.uniform(-0.2, 0.2), draw.uniform(-9, 9)),
            (draw.uniform(-0.2, 0.2), draw.uniform(0.8, 1.2), draw.uniform(-9, 9)),
        ),
    ),
}


def follow(view: View, chain: list[Step]) -> View:
    for name, *arguments in chain:
        view = getattr(view, name)(*arguments)
    return view


@dataclass(frozen=True)
class Example:
    """A scene seen through a chain."""

    scene: Scene
    chain: list[Step]
    grid: tuple[int, int]

    @staticmethod
    def draw(size: tuple[int, int], grid: tuple[int, int], draw: Random) -> "Example":
        """Any of the operations in any order, then a resize to the canvas."""
        scene, chain = Scene.draw(size, draw), []
        for name in draw.sample(list(OPERATIONS), draw.randint(2, len(OPERATIONS))):
            chain.append((name, *OPERATIONS[name](draw, *follow(View.of(*size), chain).size)))
        return Example(scene, [*chain, ("resize", PATCH * grid[0], PATCH * grid[1])], grid)

    @property
    def view(self) -> View:
        return follow(View.of(*self.scene.size), self.chain)

    def regions_of_tokens(self) -> np.ndarray:
        """The region in which a token lies with a cell to spare on every side, or -1 where there is none."""
        corners = np.arange(5) / 4 * PATCH
        y = (np.arange(self.grid[0])[:, None] * PATCH + corners)[:, None, :, None]
        x = (np.arange(self.grid[1])[:, None] * PATCH + corners)[None, :, None, :]
        (a, b, e), (c, d, f) = self.view.matrix
        x, y = (
            (plane + np.zeros((*self.grid, 5, 5))).reshape(-1, 25) for plane in (a * x + b * y + e, c * x + d * y + f)
        )
        height, width = self.scene.size
        inside = ((x >= 0) & (x <= width) & (y >= 0) & (y <= height)).all(1)
        around = [
            self.scene.region_at((x + dx).clip(0, width), (y + dy).clip(0, height))
            for dx, dy in ((0, 0), (CELL, CELL), (CELL, -CELL), (-CELL, CELL), (-CELL, -CELL))
        ]
        seen = np.concatenate(around, 1)
        return np.where(inside & (seen == seen[:, :1]).all(1), seen[:, 0], -1)


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    draw = Random(0)
    return [Example.draw(size, grid, draw) for size in SIZES for grid in GRIDS for _ in range(CHAINS)]


def share_right(examples: list[Example], view_of: Callable[[Example], Tensor]) -> float:
    """How many of the tokens that lie in one region are given its class where targets are read through `view_of`."""
    right: list[np.ndarray] = []
    for size in SIZES:
        for grid in GRIDS:
            group = [example for example in examples if example.scene.size == size and example.grid == grid]
            if group:
                maps = [example.scene.score_map() for example in group]
                targets = token_targets(maps, torch.stack([view_of(example) for example in group]), grid, CLASSES)
                given = targets.dense().argmax(-1).numpy()
                regions = np.stack([example.regions_of_tokens() for example in group])
                right.append((given == CLASS_OF[regions])[regions >= 0])
    return float(np.concatenate(right).mean())


def test_tokens_that_lie_in_one_region_get_its_class(examples: list[Example]) -> None:
    assert len(examples) >= 500
    assert {name for example in examples for name, *_ in example.chain} == set(OPERATIONS)
    assert share_right(examples, lambda example: example.view.normalized()) >= 0.99


def test_a_good_part_of_the_tokens_lies_in_one_region_and_every_region_is_met(examples: list[Example]) -> None:
    regions = np.concatenate([example.regions_of_tokens() for example in examples])
    shares = np.bincount(regions + 1, minlength=8) / len(regions)
    assert shares[0] < 0.7
    assert shares[1] < 0.2
    assert shares[2:].min() > 0.005


def test_the_image_shows_the_region_in_the_middle_of_the_token(examples: list[Example]) -> None:
    agree = []
    for example in examples:
        canvas = np.asarray(example.view.apply(example.scene.image())).astype(int)
        middles = canvas[PATCH // 2 :: PATCH, PATCH // 2 :: PATCH].reshape(-1, 3)
        regions = example.regions_of_tokens()
        agree.append((abs(middles - COLOUR_OF[regions]).max(1) <= 2)[regions >= 0])
    assert np.concatenate(agree).mean() >= 0.99


def exchanged(example: Example) -> Tensor:
    """x and y exchanged, in the canvas and in the image."""
    return example.view.normalized().flip(0)[:, [1, 0, 2]]


def without_flips(example: Example) -> Tensor:
    """The image is flipped, its targets are not."""
    kept = [step for step in example.chain if step[0] not in ("hflip", "vflip")]
    return follow(View.of(*example.scene.size), kept).normalized()


def turned_in_the_unit_square(example: Example) -> Tensor:
    """Rotation of (x / width, y / height), which shears what is not square."""
    view = View.of(*example.scene.size)
    for step in example.chain:
        if step[0] == "rotate":
            height, width = view.size
            view = follow(view.resize(100, 100), [step]).resize(height, width)
        else:
            view = follow(view, [step])
    return view.normalized()


def matters(example: Example, fault: Callable[[Example], Tensor]) -> bool:
    """Whether the fault moves any corner of the canvas by a fifth of the image or more."""
    corners = torch.tensor([[0.0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]])
    moved = (fault(example) - example.view.normalized()) @ corners.T
    return bool(moved.abs().max() > 0.2)


@pytest.mark.parametrize(
    ("fault", "at_most"), [(exchanged, 0.5), (without_flips, 0.5), (turned_in_the_unit_square, 0.85)]
)
def test_a_wrong_view_is_noticed(examples: list[Example], fault: Callable[[Example], Tensor], at_most: float) -> None:
    affected = [example for example in examples if matters(example, fault)]
    assert len(affected) > 60
    assert share_right(affected, fault) < at_most
    assert share_right(examples, fault) < 0.985
