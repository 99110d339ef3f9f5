"""A batch on its way from a worker, in one piece of memory."""

import pickle
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from alltokens.data.batch import Batch
from alltokens.data.memory import Memory, PinnedMemory
from alltokens.shapes import UInt8


@dataclass(frozen=True, eq=False)
class Parcel:
    """torch hands over each piece by a socket of the worker's, which has to interrupt its work for it.

    All else goes through a pipe. A worker that is killed while it writes leaves whoever reads waiting for the rest for
    ever; what is as short as this is written at once or not at all.
    """

    bytes: UInt8[Tensor, " n"]
    inside: int
    """Where the list of what is inside begins: the batch with tensors that have no memory, and where each has its."""

    @staticmethod
    def of(batch: Batch, memory: Memory) -> "Parcel":
        """The memory, which has the batch's pixels already, with all its other tensors."""
        starts, pixels = [], memory.bytes.untyped_storage().data_ptr()

        def put(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().data_ptr() != pixels:
                tensor = tensor.contiguous()
                starts.append(memory.append(tensor))
            else:
                starts.append(int(tensor.storage_offset()) * tensor.element_size())
            return tensor.to("meta")

        contents = batch.with_each(put)
        start = memory.append(torch.frombuffer(bytearray(pickle.dumps((contents, starts))), dtype=torch.uint8))
        return Parcel(memory.bytes[: memory.used], start)

    def copy(self, pinned: PinnedMemory | None = None) -> "Parcel":
        """In memory of its own, or in pinned memory."""
        if pinned is None:
            return replace(self, bytes=self.bytes.clone())
        return replace(self, bytes=pinned.room(len(self.bytes)).copy_(self.bytes))

    def opened(self) -> Batch:
        """The batch, whose tensors share the parcel's memory."""
        contents, starts = pickle.loads(self.bytes[self.inside :].numpy().tobytes())
        places = iter(starts)

        def take(tensor: Tensor) -> Tensor:
            start = next(places)
            own = self.bytes[start : start + tensor.numel() * tensor.element_size()]
            return own.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

        return contents.with_each(take)
