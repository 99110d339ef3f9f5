"""Convolutions of stems, computed as a GPU does them fastest; weights and answers are those of nn.Conv2d."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alltokens.shapes import Float

PIXEL = 4
"""Channels that an image has at most."""
EVEN = 8
"""Channels that tensor cores take at once."""


def convolution(before: int, after: int, kernel: int, stride: int, bias: bool) -> nn.Conv2d:
    """A convolution padded so that it divides the size by its stride."""
    kind = PixelConvolution if before <= PIXEL else PatchConvolution if kernel == stride else nn.Conv2d
    return kind(before, after, kernel, stride, padding=max(0, (kernel - stride + 1) // 2), bias=bias)


class PatchConvolution(nn.Conv2d):
    """Of patches that neither overlap nor leave gaps: a product, for whose gradient cuDNN has no fast kernel."""

    def forward(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b d h w"]:
        patch, (height, width) = self.stride[0], images.shape[2:]
        whole = images[:, :, : height // patch * patch, : width // patch * patch].permute(0, 2, 3, 1)
        patches = whole.unflatten(2, (-1, patch)).unflatten(1, (-1, patch)).transpose(2, 3).flatten(3)
        return F.linear(patches, self.weight.permute(0, 2, 3, 1).flatten(1), self.bias).permute(0, 3, 1, 2)


class PixelConvolution(nn.Conv2d):
    """Of an image, whose few channels leave most of a tensor core idle: there cells of pixels become channels."""

    def forward(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b d h w"]:
        return convolve_cells(self, images) if images.is_cuda else super().forward(images)


def convolve_cells(layer: nn.Conv2d, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b d h w"]:
    """The same with cells of pixels for pixels, and cells of answers for answers: a smaller kernel, and no stride."""
    (kernel, _), (stride, _), padding = layer.kernel_size, layer.stride, int(layer.padding[0])
    # Where kernels overlap, the four answers of a cell share most of their pixels.
    cell = 2 * stride if kernel > stride else stride
    shifts = range(0, cell, stride)
    # Taps of zero around the kernels, until they begin and end with a cell.
    before = -padding % cell
    taps = -(-(before + kernel + shifts[-1]) // cell) * cell
    sides = [(side + 2 * padding - kernel) // stride + 1 for side in images.shape[2:]]
    below, right = (
        (-(-count * stride // cell) - 1) * cell + taps - padding - before - side
        for count, side in zip(sides, images.shape[2:], strict=True)
    )
    seen = pixels_to_channels(F.pad(images, (padding + before, right, padding + before, below)), cell)
    places = [(before + shift, taps - kernel - before - shift) for shift in shifts]
    kernels = [F.pad(layer.weight, (*columns, *rows)) for rows in places for columns in places]
    bias = None if layer.bias is None else layer.bias.repeat(len(kernels))
    answers = F.conv2d(seen, pixels_to_channels(torch.cat(kernels), cell), bias)
    return channels_to_pixels(answers, len(shifts))[:, :, : sides[0], : sides[1]]


def pixels_to_channels(images: Float[Tensor, "b c H W"], side: int) -> Float[Tensor, "b d h w"]:
    """Each cell of side x side pixels as one, its pixels as channels, with zeros after them up to an even number."""
    cells = images.unflatten(3, (-1, side)).unflatten(2, (-1, side)).permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
    padded = F.pad(cells, (0, 0, 0, 0, 0, -cells.shape[1] % EVEN))
    return padded.contiguous(memory_format=torch.channels_last)


def channels_to_pixels(cells: Float[Tensor, "b d h w"], side: int) -> Float[Tensor, "b c H W"]:
    """The way back, of channels whose pixels come first; channels stay last in memory."""
    pixels = cells.permute(0, 2, 3, 1).unflatten(3, (side, side, -1)).transpose(2, 3)
    return pixels.flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)
