"""Triton kernels that resample boxes of all sizes at once, read where they lie in one row of bytes.

Columns are resized, then rows, then what is turned is turned, as in `resample`; the last step only copies an image that
is not. What is known of an image is a line of a table. A lane takes a pixel, so that it makes the weights of its three
channels once.
"""

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from alltokens.geometry.resample import REACH, sent, steps
from alltokens.geometry.view import View
from alltokens.shapes import Float, UInt8

Colour = tuple[int, int, int]

BLOCK = 256
"""Pixels that a program takes at a time."""
PROGRAMS = 64
"""For each image; they take turns with its blocks, of which images of other sizes have more or less."""

# Where the numbers of each kind begin in a line of the table; those of columns and rows are `resample.Axis`.
COLUMNS, ROWS, RESIZING, TURNING = tl.constexpr(0), tl.constexpr(4), tl.constexpr(8), tl.constexpr(9)
TURN, SHOWN, FILL, STARTS = tl.constexpr(10), tl.constexpr(16), tl.constexpr(22), tl.constexpr(25)
NUMBERS = tl.constexpr(28)


def apply_boxes(
    pixels: UInt8[Tensor, "n 3"], views: Sequence[View], interpolations: Sequence[str], fills: Sequence[Colour]
) -> UInt8[Tensor, "b 3 h w"]:
    """Canvases of boxes that lie one after the other, row by row; a pixel's channels lie side by side."""
    height, width = views[0].size
    assert all(view.size == (height, width) for view in views)
    numbers, counts = table(views, interpolations, fills)
    given, narrow, resized = counts.sum(0).long().tolist()
    assert given == len(pixels)
    numbers, grid = sent(numbers, pixels.device), (PROGRAMS, len(views))
    columns, rows = (torch.empty(n, 3, dtype=torch.float32, device=pixels.device) for n in (narrow, resized))
    canvases = pixels.new_empty(len(views), height, width, 3)
    with torch.cuda.device_of(pixels):
        resize[grid](pixels.contiguous(), columns, numbers, IS_FIRST=True, BLOCK=BLOCK)
        resize[grid](columns, rows, numbers, IS_FIRST=False, BLOCK=BLOCK)
        turn[grid](rows, canvases, numbers, height, width, BLOCK=BLOCK)
    return canvases.permute(0, 3, 1, 2)


def table(
    views: Sequence[View], interpolations: Sequence[str], fills: Sequence[Colour]
) -> tuple[Float[Tensor, "b numbers"], Float[Tensor, "b 3"]]:
    """A line for each image, and how many pixels it has at first, with its columns resized, and its rows too."""
    lines = []
    for view, interpolation, fill in zip(views, interpolations, fills, strict=True):
        rows, columns, turn = steps(view)
        reach = REACH[interpolation]
        # Within half a pixel of a point there is one pixel: the point is its centre where nothing turns.
        turning = 0.5 if view.is_axis_aligned else reach
        lines.append((*columns, *rows, reach, turning, *turn[0], *turn[1], *view.matrix[0], *view.matrix[1], *fill))
    # In double precision, which holds whole numbers as large as places among the pixels of a batch.
    numbers = torch.tensor(lines, dtype=torch.float64)
    _, _, width, from_width, _, _, height, from_height = numbers[:, : RESIZING.value].T
    counts = torch.stack((from_height * from_width, from_height * width, height * width), 1)
    return torch.cat((numbers, counts.cumsum(0) - counts), 1), counts


# A kernel's parameters are tensors outside and pointers inside: no annotation is true of both, and none is checked.


@triton.jit
@no_type_check
def resize(source, out, table, IS_FIRST: tl.constexpr, BLOCK: tl.constexpr):
    """Columns first, then rows, with the weights of `resample.weights`."""
    image = table + tl.program_id(1) * NUMBERS
    if IS_FIRST:
        axis, start, lines, inner = image + COLUMNS, image + STARTS, whole(image + ROWS + 3), 1
    else:
        axis, start, lines, inner = image + ROWS, image + STARTS + 1, 1, whole(image + COLUMNS + 2)
    scale, offset, count, own = real(axis), real(axis + 1), whole(axis + 2), whole(axis + 3)
    reach, stretch = real(image + RESIZING), tl.maximum(tl.abs(scale), 1.0)
    source += tl.load(start).to(tl.int64) * 3
    out += tl.load(start + 1).to(tl.int64) * 3
    for begin in range(tl.program_id(0) * BLOCK, lines * count * inner, tl.num_programs(0) * BLOCK):
        place = begin + tl.arange(0, BLOCK)
        is_pixel = place < lines * count * inner
        line, output = place // inner // count, place // inner % count
        centre = tl.minimum(tl.maximum(scale * (output + 0.5) + offset, 0.0), own)
        first = tl.ceil(centre - reach * stretch - 0.5).to(tl.int32)
        zero = tl.zeros((BLOCK,), tl.float32)
        red, green, blue, total = zero, zero, zero, zero
        for tap in range(0, tl.ceil(2 * reach * stretch).to(tl.int32)):
            index = first + tap
            is_own = (index >= 0) & (index < own)
            weight = tl.where(is_own, kernel(tl.abs(index + 0.5 - centre) / stretch, reach, -0.5), 0.0)
            pixel = source + ((line * own + index) * inner + place % inner) * 3
            red += weight * tl.load(pixel, mask=is_own & is_pixel, other=0).to(tl.float32)
            green += weight * tl.load(pixel + 1, mask=is_own & is_pixel, other=0).to(tl.float32)
            blue += weight * tl.load(pixel + 2, mask=is_own & is_pixel, other=0).to(tl.float32)
            total += weight
        tl.store(out + place * 3, red / total, mask=is_pixel)
        tl.store(out + place * 3 + 1, green / total, mask=is_pixel)
        tl.store(out + place * 3 + 2, blue / total, mask=is_pixel)


@triton.jit
@no_type_check
def turn(resized, canvases, table, height, width, BLOCK: tl.constexpr):
    """At unit scale, the edge repeated outside, as torch's `grid_sample` does; then fill, and bytes."""
    image = table + tl.program_id(1) * NUMBERS
    rows, columns, reach = whole(image + ROWS + 2), whole(image + COLUMNS + 2), real(image + TURNING)
    taps = tl.ceil(2 * reach).to(tl.int32)
    resized += tl.load(image + STARTS + 2).to(tl.int64) * 3
    canvases += tl.program_id(1).to(tl.int64) * height * width * 3
    for begin in range(tl.program_id(0) * BLOCK, height * width, tl.num_programs(0) * BLOCK):
        place = begin + tl.arange(0, BLOCK)
        x, y = place % width + 0.5, place // width + 0.5
        across, down = mapped(image + TURN, x, y), mapped(image + TURN + 3, x, y)
        left, top = tl.ceil(across - reach - 0.5).to(tl.int32), tl.ceil(down - reach - 0.5).to(tl.int32)
        zero = tl.zeros((BLOCK,), tl.float32)
        red, green, blue = zero, zero, zero
        for tap in range(0, taps * taps):
            row, column = top + tap // taps, left + tap % taps
            weight = kernel(tl.abs(row + 0.5 - down), reach, -0.75)
            weight *= kernel(tl.abs(column + 0.5 - across), reach, -0.75)
            pixel = resized + (within(row, rows) * columns + within(column, columns)) * 3
            red += weight * tl.load(pixel)
            green += weight * tl.load(pixel + 1)
            blue += weight * tl.load(pixel + 2)
        across, down = mapped(image + SHOWN, x, y), mapped(image + SHOWN + 3, x, y)
        is_inside = (across >= 0) & (across < whole(image + COLUMNS + 3))
        is_inside = is_inside & (down >= 0) & (down < whole(image + ROWS + 3))
        canvas, is_pixel = canvases + place * 3, place < height * width
        tl.store(canvas, byte(tl.where(is_inside, red, real(image + FILL))), mask=is_pixel)
        tl.store(canvas + 1, byte(tl.where(is_inside, green, real(image + FILL + 1))), mask=is_pixel)
        tl.store(canvas + 2, byte(tl.where(is_inside, blue, real(image + FILL + 2))), mask=is_pixel)


@triton.jit
@no_type_check
def kernel(distance, reach, a: tl.constexpr):
    """A triangle of reach 1, or Keys' cubic of reach 2."""
    x = tl.minimum(distance, 2.0)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return tl.where(reach > 1, tl.where(x < 1, near, far), tl.maximum(1 - x, 0.0))


@triton.jit
@no_type_check
def mapped(line, x, y):
    """Where a line of a matrix maps points to."""
    return real(line) * x + real(line + 1) * y + real(line + 2)


@triton.jit
@no_type_check
def within(index, count):
    """The nearest that there is."""
    return tl.minimum(tl.maximum(index, 0), count - 1)


@triton.jit
@no_type_check
def byte(value):
    """Rounded, and kept between 0 and 255."""
    return (tl.minimum(tl.maximum(value, 0.0), 255.0) + 0.5).to(tl.uint8)


@triton.jit
@no_type_check
def real(number):
    """Of the table, in single precision."""
    return tl.load(number).to(tl.float32)


@triton.jit
@no_type_check
def whole(number):
    """Of the table, as an integer."""
    return tl.load(number).to(tl.int32)
