"""Operations of timm's policies that change colours: timm's own on a Pillow image, the same on a batch of tensors."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from PIL import Image, ImageOps
from timm.data.auto_augment import NAME_TO_OP
from torch import Tensor
from torch.nn import functional as F

from alltokens.geometry.resample import sent
from alltokens.geometry.view import Number
from alltokens.shapes import Float, Int, UInt8

Images = UInt8[Tensor, "b 3 h w"]
Arguments = Float[Tensor, "b"]
"""On the CPU, where they were drawn."""


class Operation(NamedTuple):
    """One operation as it was drawn."""

    kind: str
    """timm's function."""
    arguments: tuple[Number, ...] = ()


KINDS = {name: function.__name__ for name, function in NAME_TO_OP.items()}
"""timm's function for each name that a policy may use."""


def posterize_pillow(image: Image.Image, bits: int) -> Image.Image:
    """The highest bits only; strong policies keep none, which newer Pillows refuse."""
    return ImageOps.posterize(image, min(bits, 8)) if bits > 0 else image.point(lambda _: 0)


PILLOW: dict[str, Callable[..., Image.Image]] = {
    **{function.__name__: cast(Any, function) for function in NAME_TO_OP.values()},
    "posterize": posterize_pillow,
}


def apply_pillow(image: Image.Image, operations: Sequence[Operation]) -> Image.Image:
    """The image after the operations, in their order."""
    for kind, arguments in operations:
        image = PILLOW[kind](image, *arguments)
    return image


def apply_batch(images: Images, operations: Sequence[Sequence[Operation]]) -> Images:
    """Each image after its own operations; those of one kind that come at the same place run together."""
    images = images.clone()
    for place in range(max(map(len, operations), default=0)):
        groups: dict[str, list[int]] = {}
        for index, drawn in enumerate(operations):
            if place < len(drawn):
                groups.setdefault(drawn[place].kind, []).append(index)
        for kind, indices in groups.items():
            arguments = [operations[index][place].arguments[:1] or (0.0,) for index in indices]
            column = torch.tensor(arguments, dtype=torch.float64)[:, 0]
            where = sent(torch.tensor(indices), images.device)
            images[where] = BATCHED[kind](images[where], column)
    return images


def auto_contrast(images: Images, _: Arguments) -> Images:
    """Each channel stretched to 0 and 255."""
    x = images.double()
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    # A number over a tensor would be a reciprocal, rounded once more than Pillow's quotient.
    scale = torch.full_like(low, 255) / (high - low).clamp(min=1)
    # Truncated towards zero, as Pillow's table is.
    stretched = (x * scale - low * scale).trunc().clamp(0, 255).byte()
    return torch.where(high > low, stretched, images)


def equalize(images: Images, _: Arguments) -> Images:
    """Each channel's values spread so that they are equally frequent."""
    b, c, h, w = images.shape
    flat = images.reshape(b * c, h * w).long()
    counts = torch.zeros(b * c, 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    last = counts.gather(1, flat.amax(1, keepdim=True))
    step = (h * w - last) // 255
    before = counts.cumsum(1) - counts
    table = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.gather(1, flat).byte().reshape(images.shape)


def invert(images: Images, _: Arguments) -> Images:
    """The negative."""
    return 255 - images


def posterize(images: Images, bits: Arguments) -> Images:
    """The highest bits only."""
    mask = (256 - 2 ** (8 - bits.clamp(max=8))).byte()
    return images & of_each(images, mask)


def solarize(images: Images, threshold: Arguments) -> Images:
    """The negative of what is bright."""
    return torch.where(images < of_each(images, threshold), images, 255 - images)


def solarize_add(images: Images, added: Arguments) -> Images:
    """What is dark made brighter."""
    brighter = (images.long() + of_each(images, added.long())).clamp(max=255).byte()
    return torch.where(images < 128, brighter, images)


def color(images: Images, factor: Arguments) -> Images:
    """Between grey and beyond the colours."""
    return blended(grey(images), images, factor)


def desaturate(images: Images, factor: Arguments) -> Images:
    """Towards grey."""
    return color(images, (1 - factor).clamp(0, 1))


def contrast(images: Images, factor: Arguments) -> Images:
    """Between one grey and beyond the image."""
    mean = (grey(images).double().mean((2, 3), keepdim=True) + 0.5).floor()
    return blended(mean, images, factor)


def brightness(images: Images, factor: Arguments) -> Images:
    """Between black and beyond the image."""
    return blended(torch.zeros_like(images), images, factor)


def sharpness(images: Images, factor: Arguments) -> Images:
    """Between a smoothed image and beyond the image."""
    kernel = torch.ones(3, 3, dtype=torch.float32, device=images.device)
    kernel[1, 1] = 5
    smooth = F.conv2d(images.flatten(0, 1)[:, None].float(), kernel[None, None] / 13)
    smoothed = images.clone()
    # Pillow leaves the border as it is.
    smoothed[:, :, 1:-1, 1:-1] = (
        (smooth + 0.5).floor().clamp(0, 255).byte().reshape(*images.shape[:2], *smooth.shape[2:])
    )
    return blended(smoothed, images, factor)


def gaussian_blur(images: Images, radius: Arguments) -> Images:
    """Pillow's approximation: three box blurs along rows, then three along columns, each rounded to 8 bits."""
    weights = sent(box_weights(box_radius(radius)), images.device)
    x = images.long()
    for _ in range(2):
        for _ in range(3):
            x = box_blurred(x, weights)
        x = x.transpose(2, 3)
    return x.byte()


def box_radius(radius: Arguments) -> Arguments:
    """The radius of three box blurs that together have the variance of a Gaussian of this radius."""
    # In single precision, as Pillow has it: weights of 1/6 and 2/3 give ties, which the last bit decides.
    variance = radius.float() ** 2 / 3
    whole = (((12 * variance + 1).sqrt() - 1) / 2).floor()
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    return whole + part


def box_weights(box: Arguments) -> Int[Tensor, "b k"]:
    """Weights of the pixels around one, in units of 2^-24: a whole box, and a part of the pixels beside it."""
    whole = box.floor().long()[:, None]
    inside = (2**24 / (2 * box + 1)).long()[:, None]
    beside = (2**24 - (2 * whole + 1) * inside) // 2
    reach = int(whole.max()) + 1
    distance = torch.arange(-reach, reach + 1).abs()
    return torch.where(distance <= whole, inside, beside * (distance == whole + 1))


def box_blurred(x: Int[Tensor, "b c h w"], weights: Int[Tensor, "b k"]) -> Int[Tensor, "b c h w"]:
    """Weighted means along rows, the edge repeated outside."""
    columns = torch.arange(x.shape[3], device=x.device)
    total = torch.full_like(x, 2**23)
    for place in range(weights.shape[1]):
        shifted = (columns + place - weights.shape[1] // 2).clamp(0, x.shape[3] - 1)
        total += x[..., shifted] * weights[:, place, None, None, None]
    return total >> 24


def grey(images: Images) -> UInt8[Tensor, "b 1 h w"]:
    """Luminance as Pillow rounds it."""
    red, green, blue = images.long().split(1, 1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).byte()


def blended(one: Tensor, other: Images, factor: Arguments) -> Images:
    """one + factor (other - one), truncated as Pillow does."""
    first = one.float()
    return (first + of_each(other, factor.float()) * (other.float() - first)).clamp(0, 255).byte()


def of_each(images: Images, numbers: Tensor) -> Tensor:
    """One number for each image, to compute with its pixels."""
    return sent(numbers, images.device)[:, None, None, None]


BATCHED: dict[str, Callable[[Images, Arguments], Images]] = {
    function.__name__: function
    for function in (auto_contrast, equalize, invert, posterize, solarize, solarize_add, color, desaturate)
} | {function.__name__: function for function in (contrast, brightness, sharpness, gaussian_blur)}
