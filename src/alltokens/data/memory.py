"""Memory for the pixels of batches, which those of a worker take turns in: new pages cost more than what is copied."""

import torch
from torch import Tensor

from alltokens.shapes import UInt8


class Memory:
    """Images of one batch, one after the other, rows and channels as Pillow has them."""

    def __init__(self, shared: bool = False) -> None:
        self.shared = shared
        """Whether other processes are to read it."""
        self.bytes, self.used = torch.empty(0, dtype=torch.uint8), 0

    def add(self, image: UInt8[Tensor, "3 h w"]) -> None:
        """Copy an image behind the others."""
        end = self.used + image.numel()
        if end > len(self.bytes):
            self.grow(end)
        rows = image.permute(1, 2, 0)
        self.bytes[self.used : end].view(rows.shape).copy_(rows)
        self.used = end

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
