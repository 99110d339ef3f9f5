"""Triton kernels of the sparse cross-entropy: a program takes one token and reads its logits once, in float32.

Sizes and strides come in units of up to 8 values and are multiplied again inside: Triton then knows that they are
multiples of it, and moves 16 bytes at a time for 1000 classes too, which is no multiple of the 16 that it looks for.
"""

# A Triton kernel's parameters are tensors outside and pointers inside; no annotation is true of both.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

LOWEST = tl.constexpr(-1e30)  # finite: the difference of two infinities is not a number


@triton.jit
def loss_kernel(
    logits,
    ids,
    values,
    floors,
    losses,
    normalizers,
    n,
    support,
    class_units,
    image_units,
    token_units,
    UNIT: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUPPORT: tl.constexpr,
):
    """-sum_s values_s (x_s - lse) - floor * sum_k (x_k - lse), with a maximum and sums for each column of a block."""
    token = tl.program_id(0).to(tl.int64)
    classes = class_units * UNIT
    logits += (token // n * image_units + token % n * token_units) * UNIT
    columns, slots = tl.arange(0, COLUMNS), tl.arange(0, SUPPORT)
    highest = tl.full((COLUMNS,), LOWEST, tl.float32)
    exponentials, sums = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, classes, COLUMNS):
        inside = start + columns < classes
        x = tl.load(logits + start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, x)
        exponentials = exponentials * tl.exp(highest - higher) + tl.exp(x - higher)
        sums += tl.where(inside, x, 0.0)
        highest = higher
    peak = tl.max(highest, 0)
    normalizer = peak + tl.log(tl.sum(exponentials * tl.exp(highest - peak), 0))
    value = tl.load(values + token * support + slots, mask=slots < support, other=0.0).to(tl.float32)
    place = tl.load(ids + token * support + slots, mask=slots < support, other=0)
    named = tl.load(logits + place, mask=value != 0.0, other=0.0).to(tl.float32)
    floor = tl.load(floors + token).to(tl.float32)
    loss = -tl.sum(value * (named - normalizer), 0) - floor * (tl.sum(sums, 0) - classes * normalizer)
    tl.store(losses + token, loss)
    tl.store(normalizers + token, normalizer)


@triton.jit
def gradient_kernel(
    gradients,
    logits,
    normalizers,
    ids,
    values,
    floors,
    out,
    n,
    support,
    class_units,
    image_units,
    token_units,
    UNIT: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUPPORT: tl.constexpr,
):
    """gradient * (mass * softmax(x) - target): first as if no class were named, then the named ones again."""
    token = tl.program_id(0).to(tl.int64)
    classes = class_units * UNIT
    logits += (token // n * image_units + token % n * token_units) * UNIT
    out += token * classes
    columns, slots = tl.arange(0, COLUMNS), tl.arange(0, SUPPORT)
    value = tl.load(values + token * support + slots, mask=slots < support, other=0.0).to(tl.float32)
    place = tl.load(ids + token * support + slots, mask=slots < support, other=0)
    floor = tl.load(floors + token).to(tl.float32)
    mass = tl.sum(value, 0) + floor * classes
    normalizer, gradient = tl.load(normalizers + token), tl.load(gradients + token)
    for start in range(0, classes, COLUMNS):
        inside = start + columns < classes
        x = tl.load(logits + start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        dx = gradient * (mass * tl.exp(x - normalizer) - floor)
        tl.store(out + start + columns, dx.to(out.dtype.element_ty), mask=inside)
    # Other threads of the program wrote these places: without a barrier their stores could come last.
    tl.debug_barrier()
    x = tl.load(logits + place, mask=value != 0.0, other=0.0).to(tl.float32)
    dx = gradient * (mass * tl.exp(x - normalizer) - floor - value)
    tl.store(out + place, dx.to(out.dtype.element_ty), mask=value != 0.0)


def sizes(logits: Tensor, ids: Tensor) -> tuple[list[int], dict[str, int]]:
    """What both kernels are told about their operands, at run time and at compile time."""
    (_, n, classes), support = logits.shape, ids.shape[2]
    lengths = classes, logits.stride(0), logits.stride(1)
    unit = gcd(8, *lengths)
    columns = min(4096, triton.next_power_of_2(classes))
    options = {
        "UNIT": unit,
        "COLUMNS": columns,
        "SUPPORT": triton.next_power_of_2(support),
        "num_warps": max(1, min(8, columns // 256)),
    }
    return [n, support, *(length // unit for length in lengths)], options


def without_gaps(logits: Tensor) -> Tensor:
    """Logits whose classes are neighbours in memory; images and tokens may lie anywhere."""
    return logits if logits.stride(2) == 1 else logits.contiguous()


def forward(logits: Tensor, ids: Tensor, values: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and log-sum-exps [b, n] of logits [b, n, classes]."""
    logits = without_gaps(logits)
    losses = logits.new_empty(logits.shape[:2], dtype=torch.float32)
    normalizer = torch.empty_like(losses)
    numbers, options = sizes(logits, ids)
    target = ids.contiguous(), values.contiguous(), floor.contiguous()
    loss_kernel[(losses.numel(),)](logits, *target, losses, normalizer, *numbers, **options)
    return losses, normalizer


def backward(
    gradient: Tensor, logits: Tensor, normalizer: Tensor, ids: Tensor, values: Tensor, floor: Tensor
) -> Tensor:
    """The gradient of the logits, laid out without gaps."""
    logits = without_gaps(logits)
    out = torch.empty_like(logits, memory_format=torch.contiguous_format)
    numbers, options = sizes(logits, ids)
    target = ids.contiguous(), values.contiguous(), floor.contiguous()
    gradient_kernel[(normalizer.numel(),)](gradient.contiguous(), logits, normalizer, *target, out, *numbers, **options)
    return out
