"""What workers leave to the device: of each image the box that its draw can see, to be resampled in batches there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from alltokens.augment.pipeline import Draw, apply_batch
from alltokens.geometry.resample import needed, sent
from alltokens.kernels import HAS_TRITON
from alltokens.shapes import UInt8

AT_ONCE = 128
"""Images that torch resamples at once: as floating numbers of one size they take ten times their memory."""


def cut(draw: Draw, image: UInt8[Tensor, "3 h w"]) -> tuple[Draw, UInt8[Tensor, "3 box_h box_w"]]:
    """The part of an image that a draw can see, and the same draw for it."""
    left, top, right, bottom = needed(draw.view, draw.interpolation)
    view = draw.view.within(top, left, bottom - top, right - left)
    return replace(draw, view=view), image[:, top:bottom, left:right]


@dataclass(frozen=True, eq=False)
class Boxes:
    """The boxes of a batch, not padded to one size: half as much is to be copied to the device."""

    pixels: UInt8[Tensor, "n 3"]
    """Of all boxes, one after the other, row by row."""
    draws: tuple[Draw, ...]
    """What is to become of each; its view says how large the box is."""

    def augmented(self) -> UInt8[Tensor, "b 3 h w"]:
        """The images as they were drawn, on the device that the pixels are on; laid out as workers lay them out."""
        images = self.all_at_once() if is_fused(self.pixels.device) else self.some_at_once()
        return images.contiguous(memory_format=torch.channels_last)

    def all_at_once(self) -> UInt8[Tensor, "b 3 h w"]:
        """By Triton kernels."""
        from alltokens.augment.photometric_kernel import apply_batch as recolour
        from alltokens.geometry.resample_kernel import apply_boxes

        views, interpolations, fills = zip(*((x.view, x.interpolation, x.fill) for x in self.draws), strict=True)
        canvases = apply_boxes(self.pixels, views, interpolations, fills)
        return recolour(canvases, [draw.operations for draw in self.draws])

    def some_at_once(self) -> UInt8[Tensor, "b 3 h w"]:
        """In torch's own operations."""
        groups = [self.draws[first : first + AT_ONCE] for first in range(0, len(self.draws), AT_ONCE)]
        counts = [sum(math.prod(draw.view.source) for draw in group) for group in groups]
        parts = zip(groups, self.pixels.split(counts), strict=True)
        return torch.cat([apply_batch(group, padded(pixels, group), padded=True) for group, pixels in parts])


def is_fused(device: torch.device) -> bool:
    """Whether Triton kernels take these."""
    return device.type == "cuda" and HAS_TRITON


def padded(pixels: UInt8[Tensor, "n 3"], draws: Sequence[Draw]) -> UInt8[Tensor, "b 3 h w"]:
    """Boxes as images of one size: their last row and column are repeated."""
    heights, widths = zip(*(draw.view.source for draw in draws), strict=True)
    areas = [height * width for height, width in zip(heights, widths, strict=True)]
    starts = [end - area for end, area in zip(accumulate(areas), areas, strict=True)]
    start, height, width = sent(torch.tensor([starts, heights, widths]), pixels.device)[:, :, None, None]
    row = torch.arange(max(heights), device=pixels.device)[:, None].minimum(height - 1)
    column = torch.arange(max(widths), device=pixels.device).minimum(width - 1)
    return pixels[start + width * row + column].permute(0, 3, 1, 2)
