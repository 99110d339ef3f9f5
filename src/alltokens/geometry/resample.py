"""Pixels through a view, resampled once however long the chain of operations behind it.

Antialiased means: a canvas pixel is the weighted mean of the image's pixels around the point it shows. The weights are
the kernel, stretched by the view's scale where it shrinks (never squeezed where it enlarges), cut at the image's edges
and normalised to sum to 1. `Image.resize` and `torch.nn.functional.interpolate(antialias=True)` compute the same.
A canvas pixel is fill where its centre shows a point outside the image.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from alltokens.errors import UserError, by
from alltokens.geometry.view import NEGLIGIBLE, Matrix, Number, Picture, View
from alltokens.shapes import Bool, Float

Fill = Number | tuple[Number, ...]
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

WORTH_SHRINKING = 1.1
"""A turned view that shrinks by less is not resized first: that would blur more than it spares aliasing."""
MARGIN = 3
"""Pixels kept around what a turned view shows, for the kernel's reach."""
REACH = {"bilinear": 1, "bicubic": 2}
"""Pixels that a kernel reaches to either side, where it is not stretched."""


def apply(view: View, image: Picture, interpolation: str = "bilinear", fill: Fill = 0) -> Picture:
    """The canvas of a view of a Pillow image (RGB or L), or of a tensor [channels, height, width]."""
    if isinstance(image, Tensor):
        if image.ndim != 3:
            raise UserError(f"an image needs the shape [channels, height, width]; got {list(image.shape)}")
        return apply_batch(image[None], [view], interpolation, fill)[0]
    return apply_pillow(view, image, interpolation, fill)


def apply_batch(
    images: Tensor, views: Sequence[View], interpolation: str = "bilinear", fill: Fill = 0, padded: bool = False
) -> Tensor:
    """Canvases [b, c, h, w] of images [b, c, H, W], uint8 or floating, through views that share one canvas size.

    Where they are padded, each is as large as its view says, and what lies below and to the right of it is not seen.
    """
    if images.ndim != 4 or len(images) != len(views) or not views:
        raise UserError(
            "a batch needs the shape [images, channels, height, width] and a view for each image; "
            f"got {list(images.shape)} and {len(views)} views"
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise UserError(f"images must be uint8 or floating; got {images.dtype}")
    height, width = images.shape[2:]
    for view in views:
        is_within = padded and view.source[0] <= height and view.source[1] <= width
        check(view, view.source if is_within else (height, width), images.shape[1], interpolation, fill)
        if view.size != views[0].size:
            raise UserError(
                f"the views of a batch must share one canvas size; got {by(views[0].size)} and {by(view.size)}"
            )
    # Half precision, autocast's included, rounds 8-bit pixels.
    pixels = images if images.dtype == torch.float64 else images.float()
    with torch.autocast(images.device.type, enabled=False):
        canvases = resample(pixels, views, interpolation)
    background = beside(pixels, fill).reshape(-1, 1, 1)
    canvases = torch.where(shows_image(views, pixels)[:, None], canvases, background)
    return canvases.round().clamp(0, 255).byte() if images.dtype == torch.uint8 else canvases.to(images.dtype)


def check(view: View, size: tuple[int, int], channels: int, interpolation: str, fill: Fill) -> None:
    """Raise where a view cannot be applied to an image of this size as asked."""
    if size != view.source:
        raise UserError(f"a view of an image of {by(view.source)} pixels was given one of {by(size)}")
    if interpolation not in FILTERS:
        raise UserError(f"interpolation must be bilinear or bicubic; got '{interpolation}'")
    if isinstance(fill, tuple) and len(fill) != channels:
        raise UserError(f"fill must be one number or one for each of {channels} channels; got {fill}")


# Pillow


def apply_pillow(view: View, image: Image.Image, interpolation: str, fill: Fill) -> Image.Image:
    """The canvas of a view by Pillow's own `resize`, `transpose` and `transform`."""
    if image.mode not in ("RGB", "L"):
        raise UserError(f"a Pillow image needs the mode RGB or L; got {image.mode}, convert it first")
    check(view, (image.height, image.width), len(image.getbands()), interpolation, fill)
    kernel, background = FILTERS[interpolation], colour(fill, image.mode)
    if view.is_axis_aligned:
        return resize_pillow(view, image, kernel, background)
    part = shrink(view)
    turn = (*part.turn[0], *part.turn[1])
    shrunk = image.resize(part.size[::-1], kernel, box=part.box)
    return shrunk.transform(view.size[::-1], Image.Transform.AFFINE, turn, kernel, fillcolor=background)


def resize_pillow(
    view: View, image: Image.Image, kernel: Image.Resampling, background: int | tuple[int, ...]
) -> Image.Image:
    """The canvas of an axis-aligned view."""
    (x_scale, _, x_offset), (_, y_scale, y_offset) = view.matrix
    across = visible(x_scale, x_offset, view.size[1], view.source[1])
    down = visible(y_scale, y_offset, view.size[0], view.source[0])
    if across.pixels < 1 or down.pixels < 1:
        return Image.new(image.mode, view.size[::-1], background)
    image, box = hold(image, (across.low, down.low, across.high, down.high))
    canvas = image.resize((across.pixels, down.pixels), kernel, box=box)
    if canvas.size != view.size[::-1]:
        shown, canvas = canvas, Image.new(image.mode, view.size[::-1], background)
        canvas.paste(shown, (across.first, down.first))
    if x_scale < 0:
        canvas = canvas.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return canvas.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if y_scale < 0 else canvas


Box = tuple[float, float, float, float]


def hold(image: Image.Image, box: Box) -> tuple[Image.Image, Box]:
    """An image that holds the box, as Pillow demands: edge pixels are repeated where an outermost pixel reaches out."""
    left, top = (max(0, math.ceil(-low)) for low in box[:2])
    right, bottom = (max(0, math.ceil(high - side)) for high, side in zip(box[2:], image.size, strict=True))
    if not (left or top or right or bottom):
        return image, box
    padding = ((top, bottom), (left, right), (0, 0))[: 2 if image.mode == "L" else 3]
    held = Image.fromarray(np.pad(np.asarray(image), padding, mode="edge"))
    return held, (box[0] + left, box[1] + top, box[2] + left, box[3] + top)


@dataclass(frozen=True)
class Visible:
    """The part of a canvas axis that shows the image, counted from the side that shows the image's beginning."""

    first: int
    """The first canvas pixel whose centre shows the image."""
    pixels: int
    """How many do."""
    low: float
    """Where in the image they begin."""
    high: float
    """Where in the image they end."""


def visible(scale: float, offset: float, count: int, length: int) -> Visible:
    """The visible part of `count` canvas pixels on an image axis of this length."""
    if scale < 0:
        scale, offset = -scale, offset + scale * count
    first = max(0, math.ceil(-offset / scale - 0.5))
    last = min(count, math.ceil((length - offset) / scale - 0.5))
    return Visible(first, last - first, snap(offset + scale * first), snap(offset + scale * last))


def snap(position: float) -> float:
    """A whole number where only rounding is in the way."""
    return float(round(position)) if abs(position - round(position)) < NEGLIGIBLE else position


def colour(fill: Fill, mode: str) -> int | tuple[int, ...]:
    """Fill as Pillow wants it: a number for RGB would be a packed colour."""
    if mode == "L":
        return round(fill[0] if isinstance(fill, tuple) else fill)
    return tuple(round(number) for number in (fill if isinstance(fill, tuple) else (fill, fill, fill)))


# Turned and sheared views


@dataclass(frozen=True)
class Shrink:
    """How a turned view is taken: a box of the image is resized, then turned at unit scale."""

    box: tuple[int, int, int, int]
    """Left, top, right and bottom of the box."""
    size: tuple[int, int]
    """Height and width it is resized to."""
    turn: Matrix
    """Maps a canvas point to a point of the resized box."""


def scales(view: View) -> tuple[float, float]:
    """Image pixels to a canvas pixel along the image's axes: what is left to do then keeps areas, both axes alike."""
    (a, b, _), (c, d, _) = view.matrix
    area, aspect = abs(a * d - b * c), math.hypot(a, b) / math.hypot(c, d)
    return math.sqrt(area * aspect), math.sqrt(area / aspect)


def shrink(view: View) -> Shrink:
    """For a view that is turned or sheared."""
    (a, b, e), (c, d, f) = view.matrix
    x_scale, y_scale = (scale if scale > WORTH_SHRINKING else 1.0 for scale in scales(view))
    left, top, right, bottom = seen(view, MARGIN * x_scale, MARGIN * y_scale)
    columns, rows = max(1, round((right - left) / x_scale)), max(1, round((bottom - top) / y_scale))
    x, y = columns / (right - left), rows / (bottom - top)
    turn = ((a * x, b * x, (e - left) * x), (c * y, d * y, (f - top) * y))
    return Shrink((left, top, right, bottom), (rows, columns), turn)


def seen(view: View, x_reach: float, y_reach: float) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the whole pixels that a view shows, and as far beside them as it reaches."""
    (a, b, e), (c, d, f) = view.matrix
    (height, width), (from_height, from_width) = view.size, view.source
    left, right = e + min(a, 0) * width + min(b, 0) * height, e + max(a, 0) * width + max(b, 0) * height
    top, bottom = f + min(c, 0) * width + min(d, 0) * height, f + max(c, 0) * width + max(d, 0) * height
    left, right = seen_of_axis(left - x_reach, right + x_reach, from_width)
    top, bottom = seen_of_axis(top - y_reach, bottom + y_reach, from_height)
    return left, top, right, bottom


def seen_of_axis(low: float, high: float, length: int) -> tuple[int, int]:
    """First and last pixel of an image axis between two points; a view that shows none keeps the outermost."""
    first = min(max(0, math.floor(low)), length - 1)
    return first, max(min(length, math.ceil(high)), first + 1)


def needed(view: View, interpolation: str) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the box outside of which no pixel of an image changes the canvas."""
    # What is resized for a turned view has a margin, and the kernel reaches beyond that.
    reach = REACH[interpolation] + (0 if view.is_axis_aligned else MARGIN)
    x_scale, y_scale = scales(view)
    return seen(view, reach * max(1.0, x_scale), reach * max(1.0, y_scale))


# Tensors


def resample(images: Float[Tensor, "b c H W"], views: Sequence[View], interpolation: str) -> Float[Tensor, "b c h w"]:
    """Canvases without fill; only what turns goes through the second step."""
    turned = [i for i, view in enumerate(views) if not view.is_axis_aligned]
    if not turned:
        return resize(images, views, interpolation)
    if len(turned) == len(views):
        return shrink_and_turn(images, views, interpolation)
    straight = [i for i, view in enumerate(views) if view.is_axis_aligned]
    order = sent(torch.tensor(straight + turned), images.device)
    canvases = torch.cat(
        (
            resize(images[order[: len(straight)]], [views[i] for i in straight], interpolation),
            shrink_and_turn(images[order[len(straight) :]], [views[i] for i in turned], interpolation),
        )
    )
    return torch.empty_like(canvases).index_copy(0, order, canvases)


def resize(images: Float[Tensor, "b c H W"], views: Sequence[View], interpolation: str) -> Float[Tensor, "b c h w"]:
    """Axis-aligned views."""
    rows, columns, _ = zip(*map(steps, views), strict=True)
    return separable(images, rows, columns, interpolation)


def shrink_and_turn(
    images: Float[Tensor, "b c H W"], views: Sequence[View], interpolation: str
) -> Float[Tensor, "b c h w"]:
    """Turned and sheared views; the second step's bicubic kernel is torch's (a = -0.75), Pillow's there has a = -1."""
    rows, columns, turns = zip(*map(steps, views), strict=True)
    shrunk = separable(images, rows, columns, interpolation)
    points = canvas_points(turns, views[0].size, images)
    grid = 2 * points / beside(points, [shrunk.shape[3], shrunk.shape[2]]) - 1
    return F.grid_sample(shrunk, grid, mode=interpolation, padding_mode="border", align_corners=False)


Axis = tuple[float, float, int, int]
"""Scale and offset of the map from an output axis to an input axis, and how many pixels each of the two has."""
NO_TURN: Matrix = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))


def steps(view: View) -> tuple[Axis, Axis, Matrix]:
    """How a view is taken: the maps of its rows and of its columns, and how what they give is then turned."""
    (a, _, e), (_, d, f) = view.matrix
    (height, width), (from_height, from_width) = view.size, view.source
    if view.is_axis_aligned:
        return (d, f, height, from_height), (a, e, width, from_width), NO_TURN
    part = shrink(view)
    (left, top, right, bottom), (height, width) = part.box, part.size
    rows = (bottom - top) / height, float(top), height, from_height
    columns = (right - left) / width, float(left), width, from_width
    return rows, columns, part.turn


def separable(
    images: Float[Tensor, "b c H W"], rows: Sequence[Axis], columns: Sequence[Axis], interpolation: str
) -> Float[Tensor, "b c h w"]:
    """Each image by its own two maps, as two batched products; smaller outputs repeat their last row and column."""
    narrow = images.flatten(1, 2) @ weights(columns, images.shape[3], interpolation, images).mT
    return weights(rows, images.shape[2], interpolation, images)[:, None] @ narrow.unflatten(1, images.shape[1:3])


def weights(axes: Sequence[Axis], length: int, interpolation: str, like: Tensor) -> Float[Tensor, "b n length"]:
    """What each output pixel takes of each of `length` input pixels, nothing of those that pad an image."""
    scale, offset, count, own = beside(like, axes).T[:, :, None]
    output = torch.arange(max(axis[2] for axis in axes), dtype=like.dtype, device=like.device)
    # Outputs beyond the image are overwritten with fill; brought to its edge, they have weights to divide by.
    centre = (scale * (output.minimum(count - 1) + 0.5) + offset).clamp(min=0).minimum(own)
    pixel = torch.arange(length, dtype=like.dtype, device=like.device) + 0.5
    values = kernel((pixel - centre[..., None]).abs() / scale.abs().clamp(min=1)[..., None], interpolation)
    values = values * (pixel < own)[:, None]
    return values / values.sum(-1, keepdim=True)


def kernel(distance: Tensor, interpolation: str) -> Tensor:
    """A triangle of reach 1, or Keys' cubic with a = -0.5 of reach 2."""
    if interpolation == "bilinear":
        return (1 - distance).clamp(min=0)
    x = distance.clamp(max=2)
    return torch.where(x < 1, (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2)


def shows_image(views: Sequence[View], like: Tensor) -> Bool[Tensor, "b h w"]:
    """Which canvas pixels have their centre inside the image."""
    height, width = beside(like, [view.source for view in views]).T[:, :, None, None]
    x, y = canvas_points([view.matrix for view in views], views[0].size, like).unbind(-1)
    return (x >= 0) & (x < width) & (y >= 0) & (y < height)


def canvas_points(matrices: Sequence[Matrix], size: tuple[int, int], like: Tensor) -> Float[Tensor, "b h w 2"]:
    """Where the centre of each canvas pixel is mapped to."""
    maps = beside(like, matrices)[:, None, None]
    y, x = (torch.arange(side, dtype=like.dtype, device=like.device) + 0.5 for side in size)
    return maps[..., 0] * x[:, None] + maps[..., 1] * y[:, None, None] + maps[..., 2]


def beside(like: Tensor, numbers: object) -> Tensor:
    """Numbers on the device of a tensor, in its type."""
    return sent(torch.tensor(numbers, dtype=like.dtype), like.device)


def sent(numbers: Tensor, device: torch.device) -> Tensor:
    """From the CPU to a device, which is not waited for if it is a GPU."""
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers.to(device)
