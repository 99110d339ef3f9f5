"""What the annotator is shown of an image: all of it, squashed to one square or to a rectangle of its own shape."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from alltokens.shapes import UInt8
from alltokens.sources.decode import Unreadable
from alltokens.sources.source import Source

Fit = Literal["square", "rectangle"]


@dataclass(frozen=True)
class Canvas:
    """The pixels that an image is resized to."""

    fit: Fit
    size: tuple[int, int]
    """Height and width of the square; a rectangle has about as many pixels, and no more cells."""
    stride: int
    """Pixels from one cell of the annotator's map to the next; rectangles are whole cells."""
    interpolation: str

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """Canvas height and width for an image: of the rectangles with as many cells, the one nearest in shape."""
        if self.fit == "square":
            return self.size
        cells = (self.size[0] // self.stride) * (self.size[1] // self.stride)
        rows = min(range(1, cells + 1), key=lambda rows: abs(math.log(rows * width / (cells // rows * height))))
        return rows * self.stride, cells // rows * self.stride

    def show(self, pixels: UInt8[Tensor, "3 h w"]) -> UInt8[Tensor, "3 canvas_h canvas_w"]:
        """The whole image on its canvas: within 2/255 of Pillow's pixels, which takes four times as long."""
        size = self.size_for(*pixels.shape[1:])
        return interpolate(pixels[None], size, mode=self.interpolation, antialias=True)[0]


@dataclass(frozen=True)
class Shown:
    """Images of one size as the annotator is shown them."""

    rows: list[int]
    """Their places in the source."""
    images: UInt8[Tensor, "b 3 h w"]


@dataclass(frozen=True)
class Read:
    """One batch out of a loader's worker."""

    shown: list[Shown]
    """One entry for each size of canvas."""
    unreadable: dict[int, str]
    """Why an image is in none of them."""

    def pin_memory(self) -> "Read":
        """The loader calls it so that copies to a GPU need not be waited for."""
        return Read([Shown(part.rows, part.images.pin_memory()) for part in self.shown], self.unreadable)


@dataclass(frozen=True)
class Reader:
    """A data set for torch's loader whose items are whole batches."""

    source: Source
    canvas: Canvas
    batches: list[range]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, batch: int) -> Read:
        by_size: dict[torch.Size, tuple[list[int], list[Tensor]]] = {}
        unreadable = {}
        for row in self.batches[batch]:
            try:
                image = self.canvas.show(self.source.opened(row).pixels())
            except Unreadable as reason:
                unreadable[row] = str(reason)
                continue
            rows, images = by_size.setdefault(image.shape, ([], []))
            rows.append(row)
            images.append(image)
        return Read([Shown(rows, torch.stack(images)) for rows, images in by_size.values()], unreadable)
