"""A batch on its way from a worker, in one piece of memory."""

from dataclasses import dataclass, replace

from torch import Tensor

from alltokens.data.batch import Batch
from alltokens.data.memory import Memory, PinnedMemory
from alltokens.shapes import UInt8


@dataclass(frozen=True, eq=False)
class Parcel:
    """torch hands over each piece by a socket of the worker's, which has to interrupt its work for it."""

    bytes: UInt8[Tensor, " n"]
    starts: tuple[int, ...]
    """Where each tensor of the batch begins."""
    contents: Batch
    """The batch with tensors that have no memory."""

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
        return Parcel(memory.bytes[: memory.used], tuple(starts), contents)

    def copy(self, pinned: PinnedMemory | None = None) -> "Parcel":
        """In memory of its own, or in pinned memory."""
        if pinned is None:
            return replace(self, bytes=self.bytes.clone())
        return replace(self, bytes=pinned.room(len(self.bytes)).copy_(self.bytes))

    def opened(self) -> Batch:
        """The batch, whose tensors share the parcel's memory."""
        starts = iter(self.starts)

        def take(tensor: Tensor) -> Tensor:
            start = next(starts)
            own = self.bytes[start : start + tensor.numel() * tensor.element_size()]
            return own.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

        return self.contents.with_each(take)
