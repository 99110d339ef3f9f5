"""Which image comes when, and which process takes it: functions of seed, epoch and place alone."""

from dataclasses import dataclass
from hashlib import blake2b, shake_128

import numpy as np
import torch
from torch import Tensor

from alltokens.errors import require
from alltokens.shapes import Int

NEIGHBOURS = 5
"""Images whose repeats take turns; an odd number, so that the repeats of one meet different partners in a mix."""


def epoch_order(images: int, seed: int, epoch: int, repeats: int = 1) -> Int[Tensor, " images"]:
    """The image at each place of an epoch: a permutation or, with repeats, as much of one as they leave places for.

    With `repeats` a share of the images comes that often, near to each other but never as neighbours, and the others
    do not come in this epoch, as by timm's RepeatAugSampler: epochs keep their length.
    """
    require(repeats >= 1, f"repeats must be at least 1; got repeats={repeats}")
    require(
        repeats == 1 or images >= 2 * repeats,
        f"{images:,} images can come {images // 2:,} times at most, so that there are two; got repeats={repeats}",
    )
    # Sorted by hashes: SHAKE is a standard, while torch and NumPy may shuffle otherwise in their next versions.
    hashes = np.frombuffer(shake_128(f"{seed} {epoch}".encode()).digest(8 * images), "<u8")
    number, turn = np.divmod(np.arange(images), repeats)
    # What is left after the last whole group joins it: alone it might be of one image, and that mixed with itself.
    group = np.minimum(number // NEIGHBOURS, max(0, images // (NEIGHBOURS * repeats) - 1))
    return torch.from_numpy(hashes.argsort(kind="stable")[number[np.lexsort((number, turn, group))]])


def sample_seed(seed: int, epoch: int, place: int) -> int:
    """63 bits for everything random about the sample at one place of an epoch."""
    digest = blake2b(f"{seed} {epoch} {place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one process takes of every batch: as many neighbours in the epoch's order as each of the others."""

    batch: int
    """Images of a batch, in all processes together."""
    rank: int = 0
    """Which of the processes it is."""
    processes: int = 1
    """How many there are."""
    drop_last: bool = True
    """Whether an incomplete last batch is left out; otherwise the shares of it may differ, and some be empty."""
    repeats: int = 1
    """Places of an epoch that an image has, of those that come in it at all."""
    parts: int = 1
    """Batches that one step takes together; steps that would lack some are left out."""

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.processes, f"rank {self.rank} of {self.processes}"
        # Where batches are whole, so are the pairs of neighbours that are mixed with each other.
        each, words = (2, "two images") if self.drop_last else (1, "one image")
        require(
            self.batch > 0 and self.batch % (each * self.processes) == 0,
            f"batch must be a multiple of {each * self.processes}, {words} for each of {self.processes} processes; "
            f"got batch={self.batch}",
        )

    def batches(self, images: int) -> int:
        """How many batches an epoch has, the same in every process."""
        whole, rest = divmod(images, self.batch)
        count = whole - whole % self.parts if self.drop_last else whole + (rest > 0)
        step = self.parts * self.batch
        require(count > 0, f"there are {images:,} images, fewer than a batch of {step:,}; make the batch smaller")
        return count

    def places(self, images: int, first: int = 0) -> list[range]:
        """The places of an epoch that are this process's, for each batch from `first` on."""
        count, size = self.batches(images), self.batch // self.processes
        assert 0 <= first <= count, f"batch {first} of {count}"
        starts = (batch * self.batch + self.rank * size for batch in range(first, count))
        return [range(min(start, images), min(start + size, images)) for start in starts]
