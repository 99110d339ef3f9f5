"""Real handwritten digits scattered over textured ground: a large one, whose class the scene has, and small others."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from alltokens.errors import UserError

SIDE = 48
"""Pixels of a scene."""
MAIN, OTHERS = (24, 32), (9, 14)
"""Least and largest side of the digit that counts, and of those that do not."""
FEWEST_OTHERS, MOST_OTHERS = 2, 4
HELD_OUT = 360
"""Digits, of 1,797, that appear in held-out scenes alone."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Digits:
    """Handwritten digits of 8 x 8 pixels."""

    ink: Floats
    """How dark each pixel is, from 0 to 1: [digits, 8, 8]."""
    classes: NDArray[np.int64]


def read_digits() -> tuple[Digits, Digits]:
    """Those to train on and those held out; other people wrote the last than the first."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError(
            "the demo's digits come with scikit-learn; install it with pip install 'alltokens[demo]'"
        ) from error
    found = load_digits()
    ink, classes = found.images / 16, found.target
    return Digits(ink[:-HELD_OUT], classes[:-HELD_OUT]), Digits(ink[-HELD_OUT:], classes[-HELD_OUT:])


def write_scenes(folder: Path, digits: Digits, count: int, seed: int) -> None:
    """As many scenes as JPEG files in folders named after their classes."""
    draw = np.random.default_rng(seed)
    for number in range(count):
        main = int(draw.integers(len(digits.classes)))
        name = folder / str(digits.classes[main]) / f"{number:05}.jpg"
        name.parent.mkdir(parents=True, exist_ok=True)
        scene(digits, main, draw).save(name, quality=95)


def scene(digits: Digits, main: int, draw: np.random.Generator) -> Image.Image:
    """One digit among smaller ones of other classes, all of it at random places."""
    canvas, box = ground(draw), place(draw, MAIN)
    others = np.flatnonzero(digits.classes != digits.classes[main])
    for other in draw.choice(others, draw.integers(FEWEST_OTHERS, MOST_OTHERS + 1), replace=False):
        tries = [place(draw, OTHERS) for _ in range(8)]
        paint(canvas, digits.ink[other], min(tries, key=box.shared), draw)
    # Last, so that it is never covered.
    paint(canvas, digits.ink[main], box, draw)
    return Image.fromarray((255 * canvas.clip(0, 1)).round().astype(np.uint8))


def ground(draw: np.random.Generator) -> Floats:
    """Colours that change slowly, with finer and fainter changes upon them."""
    canvas = np.full((SIDE, SIDE, 3), 0.5)
    for cells, strength in ((2, 0.35), (4, 0.25), (16, 0.12), (32, 0.08)):
        noise = draw.uniform(-strength, strength, (cells, cells, 3))
        canvas += np.stack([enlarged(noise[..., channel], SIDE) for channel in range(3)], 2)
    return canvas


@dataclass(frozen=True)
class Box:
    """A square part of a scene."""

    top: int
    left: int
    side: int

    def shared(self, other: "Box") -> int:
        """Pixels that are in both."""
        height, width = (
            max(0, min(one + self.side, two + other.side) - max(one, two))
            for one, two in ((self.top, other.top), (self.left, other.left))
        )
        return height * width


def place(draw: np.random.Generator, sides: tuple[int, int]) -> Box:
    """Somewhere in the scene, of a side between the two."""
    side = int(draw.integers(sides[0], sides[1] + 1))
    top, left = draw.integers(0, SIDE - side + 1, 2).tolist()
    return Box(top, left, side)


def paint(canvas: Floats, ink: Floats, box: Box, draw: np.random.Generator) -> None:
    """Put a digit there, darker or lighter than what is behind it."""
    behind = canvas[box.top : box.top + box.side, box.left : box.left + box.side]
    cover = enlarged(ink, box.side).clip(0, 1)[..., None]
    away = -0.5 if behind.mean() > 0.5 else 0.5
    colour = (behind.mean((0, 1)) + away + draw.uniform(-0.2, 0.2, 3)).clip(0, 1)
    behind += cover * (colour - behind)


def enlarged(values: Floats, side: int) -> Floats:
    """A square of values at another size."""
    image = Image.fromarray(values.astype(np.float32))
    return np.asarray(image.resize((side, side), Image.Resampling.BICUBIC), np.float64)
