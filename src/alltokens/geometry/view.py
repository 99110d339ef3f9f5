"""The geometry applied to an image, as one affine map from the canvas back to the image."""

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from PIL.Image import Image
from torch import Tensor

from alltokens.errors import UserError, by
from alltokens.shapes import Float

Number = int | float
Rows = tuple[tuple[Number, Number, Number], tuple[Number, Number, Number]]
Matrix = tuple[tuple[float, float, float], tuple[float, float, float]]
Picture = TypeVar("Picture", Image, Tensor)

NEGLIGIBLE = 1e-6
"""Pixels: a canvas shifted by less than this is not shifted."""


@dataclass(frozen=True)
class View:
    """What is seen of an image: each method is torchvision's operation of that name on the canvas as it then is."""

    source: tuple[int, int]
    """Height and width of the image."""
    size: tuple[int, int]
    """Height and width of the canvas."""
    matrix: Matrix
    """Maps a canvas point (x, y) to an image point, in pixels; the centre of row i, column j is (j + 0.5, i + 0.5)."""

    def __post_init__(self) -> None:
        for name, (height, width) in (("an image", self.source), ("a canvas", self.size)):
            if height < 1 or width < 1:
                raise UserError(f"{name} needs a height and width of at least 1; got {height} x {width}")
        require_finite("the matrix of a view", *self.matrix[0], *self.matrix[1])
        (a, b, _), (c, d, _) = self.matrix
        # The sine of the angle between the rows: 0 where the canvas falls onto a line.
        if abs(a * d - b * c) <= 1e-12 * math.hypot(a, b) * math.hypot(c, d):
            raise UserError(f"the matrix of a view must be invertible; got {self.matrix}, which is singular")

    @staticmethod
    def of(height: int, width: int) -> "View":
        """The whole image as it is."""
        return View((height, width), (height, width), ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)))

    def crop(self, top: Number, left: Number, height: int, width: int) -> "View":
        """A rectangle of the canvas; it may reach outside."""
        require_finite("top and left of a crop", top, left)
        return self.step((height, width), ((1, 0, left), (0, 1, top)))

    def resize(self, height: int, width: int) -> "View":
        """The canvas stretched to this size."""
        if height < 1 or width < 1:
            raise UserError(f"a canvas needs a height and width of at least 1; got {height} x {width}")
        return self.step((height, width), ((self.size[1] / width, 0, 0), (0, self.size[0] / height, 0)))

    def hflip(self) -> "View":
        """Left and right exchanged."""
        return self.step(self.size, ((-1, 0, self.size[1]), (0, 1, 0)))

    def vflip(self) -> "View":
        """Top and bottom exchanged."""
        return self.step(self.size, ((1, 0, 0), (0, -1, self.size[0])))

    def rotate(self, degrees: Number) -> "View":
        """Turned counter-clockwise about the centre; the canvas keeps its size."""
        require_finite("degrees of a rotation", degrees)
        # Rounded so that right angles are exact.
        cosine, sine = (round(f(math.radians(degrees)), 15) for f in (math.cos, math.sin))
        return self.about_centre(((cosine, -sine), (sine, cosine)))

    def shear(self, x_degrees: Number, y_degrees: Number) -> "View":
        """Sheared about the centre, along x and then along y."""
        require_finite("degrees of a shear", x_degrees, y_degrees)
        if max(abs(x_degrees), abs(y_degrees)) >= 90:
            raise UserError(f"degrees of a shear must lie between -90 and 90; got {x_degrees} and {y_degrees}")
        x, y = math.tan(math.radians(x_degrees)), math.tan(math.radians(y_degrees))
        return self.about_centre(((1 + x * y, x), (y, 1)))

    def translate(self, x: Number, y: Number) -> "View":
        """Contents moved right by x and down by y pixels."""
        require_finite("x and y of a translation", x, y)
        return self.step(self.size, ((1, 0, -x), (0, 1, -y)))

    def affine(self, matrix: Rows) -> "View":
        """Any map from the canvas to the canvas as it was, in Pillow's convention for `Image.transform`."""
        require_finite("an affine map", *matrix[0], *matrix[1])
        return self.step(self.size, matrix)

    def then(self, other: "View") -> "View":
        """Another view, of this one's canvas."""
        if other.source != self.size:
            raise UserError(
                f"a view of {by(other.source)} pixels cannot follow one whose canvas is {by(self.size)}; "
                "start it from that size"
            )
        return self.step(other.size, other.matrix)

    def inverse(self) -> "View":
        """The view that undoes this one: of the canvas, showing the image."""
        (a, b, e), (c, d, f) = self.matrix
        determinant = a * d - b * c
        a, b, c, d = d / determinant, -b / determinant, -c / determinant, a / determinant
        return View(self.size, self.source, ((a, b, -a * e - b * f), (c, d, -c * e - d * f)))

    def coarser(self, factor: int) -> "View":
        """This view of the image at one over `factor` of its size: a pixel is a square of pixels, the last less."""
        (a, b, e), (c, d, f) = ((x / factor, y / factor, offset / factor) for x, y, offset in self.matrix)
        height, width = (math.ceil(side / factor) for side in self.source)
        return View((height, width), self.size, ((a, b, e), (c, d, f)))

    def within(self, top: int, left: int, height: int, width: int) -> "View":
        """The same view of this part of the image alone."""
        (a, b, e), (c, d, f) = self.matrix
        return View((height, width), self.size, ((a, b, e - left), (c, d, f - top)))

    @property
    def is_axis_aligned(self) -> bool:
        """Whether nothing is turned or sheared, so that rows stay rows; flips and stretching are allowed."""
        (_, b, _), (c, _, _) = self.matrix
        return max(abs(b) * self.size[0], abs(c) * self.size[1]) < NEGLIGIBLE

    def normalized(self) -> Float[Tensor, "2 3"]:
        """The same map between unit squares, (x / width, y / height) of the canvas to those of the image."""
        (a, b, e), (c, d, f) = self.matrix
        (from_height, from_width), (height, width) = self.source, self.size
        x = [a * width / from_width, b * height / from_width, e / from_width]
        y = [c * width / from_height, d * height / from_height, f / from_height]
        return torch.tensor([x, y], dtype=torch.float32)

    def apply(self, image: Picture, interpolation: str = "bilinear", fill: Number | tuple[Number, ...] = 0) -> Picture:
        """The canvas: a Pillow image or a tensor [channels, height, width], resampled once.

        Where the canvas shows nothing of the image it is `fill`, one number or one a channel.
        """
        from alltokens.geometry.resample import apply  # which is about views itself

        return apply(self, image, interpolation, fill)

    def step(self, size: tuple[int, int], matrix: Rows) -> "View":
        """This view followed by a map from a canvas of `size` to the present one."""
        (a, b, e), (c, d, f) = self.matrix
        (p, q, u), (r, s, v) = matrix
        return View(
            self.source,
            size,
            (
                (a * p + b * r, a * q + b * s, a * u + b * v + e),
                (c * p + d * r, c * q + d * s, c * u + d * v + f),
            ),
        )

    def about_centre(self, linear: tuple[tuple[Number, Number], tuple[Number, Number]]) -> "View":
        """This view followed by a linear map that leaves the middle of the canvas where it is."""
        x, y = self.size[1] / 2, self.size[0] / 2
        (p, q), (r, s) = linear
        return self.step(self.size, ((p, q, x - p * x - q * y), (r, s, y - r * x - s * y)))


def require_finite(what: str, *numbers: Number) -> None:
    """Raise unless each number is finite."""
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"{what} must be finite; got {', '.join(map(str, numbers))}")
