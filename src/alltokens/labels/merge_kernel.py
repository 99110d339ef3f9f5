"""A Triton kernel that adds up the values of equal ids in a row: a program takes a row and compares each with each."""

# A Triton kernel's parameters are tensors outside and pointers inside; no annotation is true of both.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def merge_rows(ids, values, out, length, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    """Sums at first places; others are taken a block at a time, each thread adding up for places of its own."""
    row = tl.program_id(0).to(tl.int64) * length
    places = tl.arange(0, LENGTH)
    own = tl.load(ids + row + places, mask=places < length, other=-1)
    total, before = tl.zeros((LENGTH,), tl.float32), tl.zeros((LENGTH,), tl.int32)
    for start in range(0, length, BLOCK):
        others = start + tl.arange(0, BLOCK)
        other = tl.load(ids + row + others, mask=others < length, other=-2)
        value = tl.load(values + row + others, mask=others < length, other=0.0)
        same = other[:, None] == own[None, :]
        total += tl.sum(tl.where(same, value[:, None], 0.0), 0)
        before += tl.sum((same & (others[:, None] < places[None, :])).to(tl.int32), 0)
    tl.store(out + row + places, tl.where(before == 0, total, 0.0), mask=places < length)


def merge(ids: Tensor, values: Tensor) -> Tensor:
    """Of ids and values [..., m] without gaps."""
    out = torch.empty_like(values)
    length = ids.shape[-1]
    padded = triton.next_power_of_2(length)
    rows = values.numel() // length
    # With more warps they would share a place, and meet in memory to add it up.
    merge_rows[(rows,)](ids, values, out, length, LENGTH=padded, BLOCK=min(16, padded), num_warps=max(1, padded // 128))
    return out
