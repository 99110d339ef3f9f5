"""Triton kernels of talking-heads attention: batched products on strided views, and the mixing of heads around softmax.

Nothing of size n x n outlives a pass: the backward pass computes the scores again, which costs one pass over memory
and saves b h n n values a layer. Rows of such buffers are padded with zeros to a multiple of 16 values: Triton loads 16
bytes at a time only where strides and bounds are known to be multiples of 16.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """What one program of the product kernel computes."""

    rows: int
    """Rows of the output."""
    columns: int
    """Columns of the output."""
    inner: int
    """Depth of one step of the sum."""
    warps: int
    """Warps of the program."""
    stages: int
    """Steps whose loads are in flight."""


@dataclass(frozen=True)
class Walk:
    """How one program of a mixing kernel goes through the queries."""

    lines: int
    """Heads of neighbouring queries that are stacked to fill one matrix instruction."""
    columns: int
    """Keys a program sees at once."""
    steps: int
    """Stacks a program takes one after another."""
    warps: int
    """Warps of the program."""
    stages: int
    """Stacks whose loads are in flight."""


def power_of_two(size: int) -> int:
    """The next power of two, at least 16: what a block may measure."""
    return max(16, 1 << (size - 1).bit_length())


def score_tile(q: Tensor) -> Tile:
    """For products of depth c whose output is n x n."""
    inner = min(64, power_of_two(q.shape[3]))
    if q.dtype == torch.float32:
        return Tile(rows=64, columns=64, inner=inner, warps=8, stages=2)
    return Tile(rows=64, columns=128, inner=inner, warps=4, stages=2)


def value_tile(q: Tensor) -> Tile:
    """For products of depth n whose output is n x c."""
    columns = min(128, power_of_two(q.shape[3]))
    if q.dtype == torch.float32:
        return Tile(rows=64, columns=columns, inner=32, warps=4, stages=3)
    return Tile(rows=128, columns=columns, inner=64, warps=4, stages=3)


def mixing_walk(scores: Tensor) -> Walk:
    """Whole rows while they fit into registers; on an H200 a third stage takes 13 % off the forward kernel."""
    columns = min(256, power_of_two(scores.shape[2]))
    per_warp = 32 if scores.dtype == torch.float32 else 64
    return Walk(lines=16, columns=columns, steps=8, warps=max(1, columns // per_warp), stages=3)


@triton.jit
def product_kernel(
    left,
    right,
    out,
    factor,
    heads,
    left_rows,
    left_inner,
    right_inner,
    right_columns,
    out_rows,
    out_columns,
    left_b,
    left_h,
    left_row,
    left_step,
    right_b,
    right_h,
    right_step,
    right_column,
    out_b,
    out_h,
    out_row,
    out_column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out = factor * left @ right for one tile of one head; every operand is masked by its own bounds."""
    row_tiles, column_tiles = tl.cdiv(out_rows, ROWS), tl.cdiv(out_columns, COLUMNS)
    tile = tl.program_id(0) % (row_tiles * column_tiles)
    item = tl.program_id(0) // (row_tiles * column_tiles)
    # 64 bits: b h n n passes 2^31 at batch 256 of 512-pixel images.
    b, h = (item // heads).to(tl.int64), item % heads
    row = (tile // column_tiles) * ROWS + tl.arange(0, ROWS)
    column = (tile % column_tiles) * COLUMNS + tl.arange(0, COLUMNS)
    here = tl.arange(0, INNER)
    left += b * left_b + h * left_h + row[:, None] * left_row
    right += b * right_b + h * right_h + column[None, :] * right_column
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(STEPS):
        in_left = (row[:, None] < left_rows) & (here[None, :] < left_inner)
        in_right = (here[:, None] < right_inner) & (column[None, :] < right_columns)
        a = tl.load(left + here[None, :] * left_step, mask=in_left, other=0.0)
        c = tl.load(right + here[:, None] * right_step, mask=in_right, other=0.0)
        total = tl.dot(a, c, total, input_precision=PRECISION)
        here += INNER
    out += b * out_b + h * out_h + row[:, None] * out_row + column[None, :] * out_column
    in_out = (row[:, None] < out_rows) & (column[None, :] < out_columns)
    tl.store(out, (total * factor).to(out.dtype.element_ty), mask=in_out)


@triton.jit
def stacked(weights, HEADS: tl.constexpr, LINES: tl.constexpr, dtype: tl.constexpr):
    """The [heads, heads] weights once for every query of a stack, on the diagonal."""
    g, h = tl.arange(0, LINES)[:, None], tl.arange(0, LINES)[None, :]
    filled: tl.constexpr = LINES // HEADS * HEADS
    same_query = (g // HEADS == h // HEADS) & (g < filled) & (h < filled)
    return tl.load(weights + (g % HEADS) * HEADS + h % HEADS, mask=same_query, other=0.0).to(dtype)


@triton.jit
def outer(a, c, total, PRECISION: tl.constexpr):
    """a @ c^T with the columns shared out among the parts of total [parts, lines, lines]."""
    PARTS: tl.constexpr = total.shape[0]
    shape: tl.constexpr = (a.shape[0], PARTS, a.shape[1] // PARTS)
    a = tl.permute(tl.reshape(a, shape), (1, 0, 2))
    c = tl.permute(tl.reshape(c, shape), (1, 2, 0))
    return tl.dot(a, c, total, input_precision=PRECISION)


@triton.jit
def rescaled(logits, highest, total):
    """The highest logit and the sum of exponentials below it, with these columns added; what shrinks the old sums."""
    peak = tl.maximum(highest, tl.max(logits, 1))
    shrink = tl.exp(highest - peak)
    return peak, total * shrink + tl.sum(tl.exp(logits - peak[:, None]), 1), shrink


@triton.jit
def mix_kernel(
    scores,
    before,
    after,
    after_bias,
    n,
    stored,
    HEADS: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr,
    STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores become attention weights in place: after @ softmax(before @ scores) + after_bias.

    Two passes over blocks of columns; with one block the compiler merges them.
    """
    dtype = scores.dtype.element_ty
    QUERIES: tl.constexpr = LINES // HEADS
    programs = tl.cdiv(n, QUERIES * STEPS)
    b, first = (tl.program_id(0) // programs).to(tl.int64), tl.program_id(0) % programs * QUERIES * STEPS
    line, columns = tl.arange(0, LINES), tl.arange(0, COLUMNS)[None, :]
    head, query = line % HEADS, first + line // HEADS
    scores += b * HEADS * n * stored
    before_weights, after_weights = stacked(before, HEADS, LINES, dtype), stacked(after, HEADS, LINES, dtype)
    bias = tl.load(after_bias + head).to(tl.float32)[:, None]
    for _ in range(STEPS):
        place = scores + ((head * n + query) * stored)[:, None]
        real = ((line < QUERIES * HEADS) & (query < n))[:, None]
        highest, total = tl.full((LINES,), float("-inf"), tl.float32), tl.zeros((LINES,), tl.float32)
        for block in range(BLOCKS):
            column = columns + block * COLUMNS
            s = tl.load(place + column, mask=real & (column < stored), other=0.0)
            t = tl.where(column < n, tl.dot(before_weights, s, input_precision=PRECISION), float("-inf"))
            highest, total, _shrink = rescaled(t, highest, total)
        for block in range(BLOCKS):
            column = columns + block * COLUMNS
            s = tl.load(place + column, mask=real & (column < stored), other=0.0)
            t = tl.where(column < n, tl.dot(before_weights, s, input_precision=PRECISION), float("-inf"))
            p = tl.exp(t - highest[:, None]) * (1.0 / total)[:, None]
            r = tl.dot(after_weights, p.to(dtype), input_precision=PRECISION) + bias
            r = tl.where(column < n, r, 0.0)
            tl.store(place + column, r.to(dtype), mask=real & (column < stored))
        query += QUERIES


@triton.jit
def mix_backward_kernel(
    scores,
    gradients,
    before,
    after,
    after_bias,
    partial,
    n,
    stored,
    HEADS: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr,
    STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Scores become attention weights, gradients of these become gradients of scores, both in place.

    partial [programs, 2 lines, lines]: products of stacked lines for `before` and `after`.
    """
    dtype = scores.dtype.element_ty
    QUERIES: tl.constexpr = LINES // HEADS
    programs = tl.cdiv(n, QUERIES * STEPS)
    b, first = (tl.program_id(0) // programs).to(tl.int64), tl.program_id(0) % programs * QUERIES * STEPS
    line, columns = tl.arange(0, LINES), tl.arange(0, COLUMNS)[None, :]
    head, query = line % HEADS, first + line // HEADS
    scores += b * HEADS * n * stored
    gradients += b * HEADS * n * stored
    before_weights, after_weights = stacked(before, HEADS, LINES, dtype), stacked(after, HEADS, LINES, dtype)
    before_back, after_back = tl.trans(before_weights), tl.trans(after_weights)
    bias = tl.load(after_bias + head).to(tl.float32)[:, None]
    before_sum = tl.zeros((PARTS, LINES, LINES), tl.float32)
    after_sum = tl.zeros((PARTS, LINES, LINES), tl.float32)
    for _ in range(STEPS):
        place = ((head * n + query) * stored)[:, None]
        real = ((line < QUERIES * HEADS) & (query < n))[:, None]
        highest, total = tl.full((LINES,), float("-inf"), tl.float32), tl.zeros((LINES,), tl.float32)
        aligned = tl.zeros((LINES,), tl.float32)
        for block in range(BLOCKS):
            column = columns + block * COLUMNS
            s = tl.load(scores + place + column, mask=real & (column < stored), other=0.0)
            dr = tl.load(gradients + place + column, mask=real & (column < stored), other=0.0)
            t = tl.where(column < n, tl.dot(before_weights, s, input_precision=PRECISION), float("-inf"))
            highest, total, shrink = rescaled(t, highest, total)
            dp = tl.dot(after_back, dr, input_precision=PRECISION)
            aligned = aligned * shrink + tl.sum(dp * tl.exp(t - highest[:, None]), 1)
        scale = 1.0 / total
        for block in range(BLOCKS):
            column = columns + block * COLUMNS
            s = tl.load(scores + place + column, mask=real & (column < stored), other=0.0)
            dr = tl.load(gradients + place + column, mask=real & (column < stored), other=0.0)
            t = tl.where(column < n, tl.dot(before_weights, s, input_precision=PRECISION), float("-inf"))
            p = tl.exp(t - highest[:, None]) * scale[:, None]
            dp = tl.dot(after_back, dr, input_precision=PRECISION)
            dt = (p * (dp - (aligned * scale)[:, None])).to(dtype)
            ds = tl.dot(before_back, dt, input_precision=PRECISION)
            tl.store(gradients + place + column, ds.to(dtype), mask=real & (column < stored))
            r = tl.dot(after_weights, p.to(dtype), input_precision=PRECISION) + bias
            r = tl.where(column < n, r, 0.0)
            tl.store(scores + place + column, r.to(dtype), mask=real & (column < stored))
            after_sum = outer(dr, p.to(dtype), after_sum, PRECISION)
            before_sum = outer(dt, s, before_sum, PRECISION)
        query += QUERIES
    partial += tl.program_id(0).to(tl.int64) * 2 * LINES * LINES
    square = line[:, None] * LINES + line[None, :]
    tl.store(partial + square, tl.sum(before_sum, 0))
    tl.store(partial + LINES * LINES + square, tl.sum(after_sum, 0))


def precision(tensor: Tensor) -> str:
    """How float32 operands are multiplied: as torch's own products are."""
    exact = tensor.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return "ieee" if exact else "tf32"


def product(left: Tensor, right: Tensor, out: Tensor, tile: Tile, factor: float = 1.0) -> Tensor:
    """out[b, h] = factor * left[b, h] @ right[b, h]; what one operand has beyond another counts as zero."""
    b, h, rows, columns = out.shape
    programs = b * h * triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns)
    product_kernel[(programs,)](
        left,
        right,
        out,
        factor,
        h,
        *left.shape[2:],
        *right.shape[2:],
        rows,
        columns,
        *left.stride(),
        *right.stride(),
        *out.stride(),
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        INNER=tile.inner,
        STEPS=triton.cdiv(min(left.shape[3], right.shape[2]), tile.inner),
        PRECISION=precision(left),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


def walk_options(scores: Tensor, walk: Walk) -> dict[str, Any]:
    """Compile-time arguments of the mixing kernels."""
    return {
        "HEADS": scores.shape[1],
        "LINES": walk.lines,
        "COLUMNS": walk.columns,
        "BLOCKS": triton.cdiv(scores.shape[2], walk.columns),
        "STEPS": walk.steps,
        "PRECISION": precision(scores),
        "num_warps": walk.warps,
        "num_stages": walk.stages,
    }


def walk_programs(scores: Tensor, walk: Walk) -> int:
    """Programs that take `walk.steps` stacks each and all queries together."""
    b, h, n, _ = scores.shape
    return b * triton.cdiv(n, walk.lines // h * walk.steps)


def mix(scores: Tensor, before: Tensor, after: Tensor, after_bias: Tensor, walk: Walk) -> Tensor:
    """Turn the scores [b, h, n, stored] into attention weights, in place."""
    n, stored = scores.shape[2:]
    weights = before.contiguous(), after.contiguous(), after_bias.contiguous()
    mix_kernel[(walk_programs(scores, walk),)](scores, *weights, n, stored, **walk_options(scores, walk))
    return scores


def mix_backward(
    scores: Tensor, gradients: Tensor, before: Tensor, after: Tensor, after_bias: Tensor, walk: Walk
) -> tuple[Tensor, Tensor]:
    """Gradients of before and after; scores become weights and gradients those of the scores, in place."""
    heads, (n, stored) = scores.shape[1], scores.shape[2:]
    programs, lines, queries = walk_programs(scores, walk), walk.lines, walk.lines // heads
    partial = scores.new_empty(programs, 2, lines, lines, dtype=torch.float32)
    weights = before.contiguous(), after.contiguous(), after_bias.contiguous()
    # The columns are a warp's own in the sums over columns: shared by all warps they fill its registers.
    parts = min(walk.warps, walk.columns // 16)
    options = walk_options(scores, walk) | {"PARTS": parts}
    mix_backward_kernel[(programs,)](scores, gradients, *weights, partial, n, stored, **options)
    filled = queries * heads
    squares = partial.sum(0)[:, :filled, :filled].unflatten(2, (queries, heads)).unflatten(1, (queries, heads))
    before_gradient, after_gradient = (square.diagonal(dim1=0, dim2=2).sum(-1) for square in squares)
    return before_gradient.to(before.dtype), after_gradient.to(after.dtype)


def square_buffer(like: Tensor) -> Tensor:
    """Room for one value a head and pair of tokens, rows padded to a multiple of 16."""
    b, h, n, _ = like.shape
    return like.new_empty(b, h, n, -(-n // 16) * 16)


def forward(q: Tensor, k: Tensor, v: Tensor, before: Tensor, after: Tensor, after_bias: Tensor) -> Tensor:
    """Attention of q, k, v [b, h, n, c], laid out [b, n, h, c]."""
    b, h, n, c = q.shape
    scores = product(q, k.transpose(2, 3), square_buffer(q), score_tile(q), c**-0.5)
    weights = mix(scores, before, after, after_bias, mixing_walk(scores))
    out = q.new_empty(b, n, h, c)
    product(weights, v, out.transpose(1, 2), value_tile(q))
    return out


def backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, before: Tensor, after: Tensor, after_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, laid out [b, n, h, c], and of before, after, after_bias."""
    b, h, n, c = q.shape
    gradient, scale = gradient.transpose(1, 2), c**-0.5
    scores = product(q, k.transpose(2, 3), square_buffer(q), score_tile(q), scale)
    squares = product(gradient, v.transpose(2, 3), square_buffer(q), score_tile(q))
    # Summed over tokens first, which loses nothing to the rounding of n x n products that nearly cancel.
    gradient_sum, value_sum = (x.sum(2, dtype=torch.float32) for x in (gradient, v))
    bias_gradient = (gradient_sum * value_sum).sum((0, 2)).to(after_bias.dtype)
    mixing = *mix_backward(scores, squares, before, after, after_bias, mixing_walk(scores)), bias_gradient
    dq, dk, dv = (q.new_empty(b, n, h, c) for _ in range(3))
    product(squares, k, dq.transpose(1, 2), value_tile(q), scale)
    product(squares.transpose(2, 3), q, dk.transpose(1, 2), value_tile(q), scale)
    product(scores.transpose(2, 3), gradient, dv.transpose(1, 2), value_tile(q))
    return dq, dk, dv, *mixing
