"""Triton kernels that change the colours of a batch, each image in its own way: two for each place in the records.

The first makes tables, counting the values of an image where its change asks for that; the second looks every value up,
or blends it with its pixel's grey or its neighbours' mean. Nothing is multiplied and added in one rounding, as Pillow
does not.
"""

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from alltokens.augment.photometric import Operation, gaussian_blur
from alltokens.geometry.resample import sent
from alltokens.shapes import Float, UInt8

BLOCK = 1024
"""Values that a program takes at a time."""

KEPT, AUTO_CONTRAST, EQUALIZE, INVERT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
POSTERIZE, SOLARIZE, SOLARIZE_ADD, BRIGHTNESS = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6), tl.constexpr(7)
CONTRAST, COLOR, SHARPNESS = tl.constexpr(8), tl.constexpr(9), tl.constexpr(10)
CODES = {
    "auto_contrast": AUTO_CONTRAST,
    "equalize": EQUALIZE,
    "invert": INVERT,
    "posterize": POSTERIZE,
    "solarize": SOLARIZE,
    "solarize_add": SOLARIZE_ADD,
    "brightness": BRIGHTNESS,
    "contrast": CONTRAST,
    "color": COLOR,
    "desaturate": COLOR,
    "sharpness": SHARPNESS,
    "gaussian_blur": KEPT,
}
"""What the kernels call each change; blurs, which are rare and reach far, are not theirs."""


def apply_batch(
    images: UInt8[Tensor, "b 3 h w"], operations: Sequence[Sequence[Operation]]
) -> UInt8[Tensor, "b 3 h w"]:
    """`photometric.apply_batch` on a GPU, images laid out channels last."""
    pixels = images.permute(0, 2, 3, 1).contiguous()
    count, height, width, _ = pixels.shape
    tables, values = pixels.new_empty(count, 3, 256), height * width * 3
    for place, changes in enumerate(sent(numbers(operations), images.device)):
        recoloured = torch.empty_like(pixels)
        with torch.cuda.device_of(pixels):
            make_tables[(count, 3)](pixels, changes, tables, values, BLOCK=BLOCK, enable_fp_fusion=False)
            recolour[(triton.cdiv(values, BLOCK), count)](
                pixels, recoloured, changes, tables, height, width, BLOCK=BLOCK, enable_fp_fusion=False
            )
        if blurred := blurs(operations, place):
            where = sent(torch.tensor(list(blurred)), images.device)
            radii = torch.tensor(list(blurred.values()), dtype=torch.float64)
            recoloured[where] = gaussian_blur(pixels[where].permute(0, 3, 1, 2), radii).permute(0, 2, 3, 1)
        pixels = recoloured
    return pixels.permute(0, 3, 1, 2)


def numbers(operations: Sequence[Sequence[Operation]]) -> Float[Tensor, "places b 2"]:
    """The code and the argument of each image's change at each place."""
    places = range(max(map(len, operations), default=0))
    rows = [[encoded(drawn[place]) if place < len(drawn) else (0, 0.0) for drawn in operations] for place in places]
    return torch.tensor(rows, dtype=torch.float64).view(len(places), len(operations), 2)


def encoded(operation: Operation) -> tuple[int, float]:
    """One change as the kernels know it."""
    argument = float((*operation.arguments, 0.0)[0])
    match operation.kind:
        case "posterize":
            argument = 256 - 2 ** (8 - min(argument, 8))
        case "desaturate":
            argument = min(max(1 - argument, 0.0), 1.0)
    return CODES[operation.kind].value, argument


def blurs(operations: Sequence[Sequence[Operation]], place: int) -> dict[int, float]:
    """The images that are blurred at a place, with their radii."""
    return {
        index: drawn[place].arguments[0]
        for index, drawn in enumerate(operations)
        if place < len(drawn) and drawn[place].kind == "gaussian_blur"
    }


# A kernel's parameters are tensors outside and pointers inside: no annotation is true of both, and none is checked.


@triton.jit
@no_type_check
def make_tables(images, changes, tables, values, BLOCK: tl.constexpr):
    """A program makes that of a channel of an image."""
    image, channel = tl.program_id(0), tl.program_id(1)
    kind, argument = tl.load(changes + image * 2).to(tl.int32), tl.load(changes + image * 2 + 1)
    images += image.to(tl.int64) * values
    value = tl.arange(0, 256)
    table = value
    if (kind == AUTO_CONTRAST) | (kind == EQUALIZE):
        counts = counted(images + channel, values, BLOCK)
        low = tl.min(tl.where(counts > 0, value, 255))
        high = tl.max(tl.where(counts > 0, value, 0))
        if kind == AUTO_CONTRAST:
            scale = 255.0 / tl.maximum(high - low, 1).to(tl.float64)
            stretched = value.to(tl.float64) * scale - low.to(tl.float64) * scale
            table = tl.where(high > low, as_byte(stretched), value)
        else:
            step = (values // 3 - tl.sum(tl.where(value == high, counts, 0))) // 255
            before = tl.cumsum(counts, 0) - counts
            spread = (step // 2 + before) // tl.maximum(step, 1)
            table = tl.where(step > 0, tl.minimum(spread, 255), value)
    elif kind == INVERT:
        table = 255 - value
    elif kind == POSTERIZE:
        table = value & argument.to(tl.int32)
    elif kind == SOLARIZE:
        table = tl.where(value.to(tl.float64) < argument, value, 255 - value)
    elif kind == SOLARIZE_ADD:
        table = tl.where(value < 128, tl.minimum(value + argument.to(tl.int32), 255), value)
    elif kind == BRIGHTNESS:
        table = blended(tl.zeros_like(value), value, argument)
    elif kind == CONTRAST:
        mean = (2 * summed_grey(images, values, BLOCK) + values // 3) // (2 * (values // 3))
        table = blended(mean.to(tl.int32), value, argument)
    tl.store(tables + (image * 3 + channel) * 256 + value, table.to(tl.uint8))


@triton.jit
@no_type_check
def recolour(images, out, changes, tables, height, width, BLOCK: tl.constexpr):
    """A program takes some values of an image."""
    image, values = tl.program_id(1), height * width * 3
    kind, factor = tl.load(changes + image * 2).to(tl.int32), tl.load(changes + image * 2 + 1)
    images += image.to(tl.int64) * values
    out += image.to(tl.int64) * values
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_value = place < values
    value = tl.load(images + place, mask=is_value, other=0).to(tl.int32)
    if kind == COLOR:
        value = blended(grey(images, place - place % 3, is_value), value, factor)
    elif kind == SHARPNESS:
        row, column = place // 3 // width, place // 3 % width
        # Pillow leaves the border as it is.
        is_within = (row > 0) & (row < height - 1) & (column > 0) & (column < width - 1)
        total = 4 * value
        for neighbour in tl.static_range(9):
            away = ((neighbour // 3 - 1) * width + neighbour % 3 - 1) * 3
            total += tl.load(images + place + away, mask=is_within & is_value, other=0).to(tl.int32)
        # Thirteenths are never halfway between two levels: any way of rounding is Pillow's.
        value = blended(tl.where(is_within, (2 * total + 13) // 26, value), value, factor)
    else:
        value = tl.load(tables + (image * 3 + place % 3) * 256 + value).to(tl.int32)
    tl.store(out + place, value.to(tl.uint8), mask=is_value)


@triton.jit
@no_type_check
def counted(channel, values, BLOCK: tl.constexpr):
    """How often each value is there, in every third place."""
    counts = tl.zeros((256,), tl.int32)
    for begin in range(0, values, 3 * BLOCK):
        place = begin + 3 * tl.arange(0, BLOCK)
        counts += tl.histogram(tl.load(channel + place, mask=place < values, other=0).to(tl.int32), 256)
    beyond = tl.cdiv(values, 3 * BLOCK) * BLOCK - values // 3
    return counts - tl.where(tl.arange(0, 256) == 0, beyond, 0)


@triton.jit
@no_type_check
def summed_grey(image, values, BLOCK: tl.constexpr):
    """Of all pixels."""
    total = tl.zeros((BLOCK,), tl.int64)
    for begin in range(0, values, 3 * BLOCK):
        place = begin + 3 * tl.arange(0, BLOCK)
        total += tl.where(place < values, grey(image, place, place < values), 0)
    return tl.sum(total)


@triton.jit
@no_type_check
def grey(image, pixel, is_pixel):
    """Luminance as Pillow rounds it, of pixels that begin at these places."""
    red = tl.load(image + pixel, mask=is_pixel, other=0).to(tl.int32)
    green = tl.load(image + pixel + 1, mask=is_pixel, other=0).to(tl.int32)
    blue = tl.load(image + pixel + 2, mask=is_pixel, other=0).to(tl.int32)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16


@triton.jit
@no_type_check
def blended(one, other, factor):
    """one + factor (other - one)."""
    return as_byte(one.to(tl.float32) + factor.to(tl.float32) * (other - one).to(tl.float32))


@triton.jit
@no_type_check
def as_byte(value):
    """Truncated as Pillow does, and kept between 0 and 255."""
    return tl.minimum(tl.maximum(value, 0.0), 255.0).to(tl.int32)
