"""Memory for the pixels of batches, which those of a worker take turns in: new pages cost more than what is copied."""

import torch
from torch import Tensor

from alltokens.shapes import UInt8

ALIGNED = 16
"""Bytes that numbers of every type may begin at a multiple of."""


class Memory:
    """Images of one batch, one after the other, rows and channels as Pillow has them, then all else of it."""

    def __init__(self, shared: bool = False) -> None:
        self.shared = shared
        """Whether other processes are to read it."""
        self.bytes, self.used = torch.empty(0, dtype=torch.uint8), 0

    def add(self, image: UInt8[Tensor, "3 h w"]) -> None:
        """Copy an image behind the others."""
        rows = image.permute(1, 2, 0)
        self.room(image.numel()).view(rows.shape).copy_(rows)

    def append(self, tensor: Tensor) -> int:
        """Copy a tensor without gaps behind the images; where it begins."""
        self.room(-self.used % ALIGNED)
        start, raw = self.used, tensor.reshape(-1).view(torch.uint8)
        self.room(len(raw)).copy_(raw)
        return start

    def room(self, count: int) -> UInt8[Tensor, " count"]:
        """The next bytes, which are used from now on."""
        end = self.used + count
        if end > len(self.bytes):
            self.grow(end)
        free, self.used = self.bytes[self.used : end], end
        return free

    def grow(self, needed: int) -> None:
        """Take more, and keep what is there; pages that nothing is written to are not really taken."""
        count = max(needed, 2 * len(self.bytes))
        if self.shared:
            # As torch's own collation does: `share_memory_` would write to every page.
            larger = self.bytes.new().set_(torch.UntypedStorage._new_shared(count))
        else:
            larger = self.bytes.new_empty(count)
        larger[: self.used] = self.bytes[: self.used]
        self.bytes = larger

    def taken(self) -> UInt8[Tensor, "n 3"]:
        """The pixels of all images."""
        return self.bytes[: self.used].view(-1, 3)


class PinnedMemory:
    """Memory that a GPU copies from by itself.

    A new piece takes up to a second, in which the GPU may be given nothing to do; pieces of one size are used again by
    torch, when the GPU is done with them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.size = device, 0

    def room(self, count: int) -> UInt8[Tensor, " count"]:
        """So many bytes, of a piece of a size that is seldom outgrown."""
        self.size = max(self.size, 1 << (count - 1).bit_length())
        with torch.cuda.device(self.device):
            return torch.empty(self.size, dtype=torch.uint8, pin_memory=True)[:count]
