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
    """Of an image, whose few channels leave most of a tensor core idle: there a step's pixels become channels."""

    def forward(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b d h w"]:
        return convolve_cells(self, images) if images.is_cuda else super().forward(images)


def convolve_cells(layer: nn.Conv2d, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b d h w"]:
    """The same with cells of stride x stride pixels for pixels: a smaller kernel, and no stride."""
    (kernel, _), (stride, _), padding = layer.kernel_size, layer.stride, int(layer.padding[0])
    # Taps of zero around the kernel, until it begins and ends with a cell.
    first, last = -padding % stride, -(kernel - padding) % stride
    cells = (first + kernel + last) // stride
    before = padding + first
    sides = [((side + 2 * padding - kernel) // stride + cells) * stride for side in images.shape[2:]]
    below, right = (length - before - side for length, side in zip(sides, images.shape[2:], strict=True))
    seen = pixels_to_channels(F.pad(images, (before, right, before, below)), stride)
    weight = pixels_to_channels(F.pad(layer.weight, (first, last, first, last)), stride)
    return F.conv2d(seen, weight, layer.bias)


def pixels_to_channels(images: Float[Tensor, "b c H W"], side: int) -> Float[Tensor, "b d h w"]:
    """Each cell of side x side pixels as one, its pixels as channels, with zeros after them up to an even number."""
    cells = images.unflatten(3, (-1, side)).unflatten(2, (-1, side)).permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
    padded = F.pad(cells, (0, 0, 0, 0, 0, -cells.shape[1] % EVEN))
    return padded.contiguous(memory_format=torch.channels_last)
