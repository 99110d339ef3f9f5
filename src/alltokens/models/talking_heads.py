"""Talking-heads attention (CaiT, section 4.3): heads are mixed by a learned matrix before and after the softmax."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from alltokens.kernels import HAS_TRITON
from alltokens.shapes import Float

FUSED_DTYPES = torch.bfloat16, torch.float16, torch.float32
FUSED_HEADS = 16
"""Most heads that one matrix instruction mixes."""


def talking_heads(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n c"],
    before: Float[Tensor, "h h"],
    before_bias: Float[Tensor, " h"],
    after: Float[Tensor, "h h"],
    after_bias: Float[Tensor, " h"],
    dropout: float = 0.0,
) -> Float[Tensor, "b h n c"]:
    """Weights are after @ softmax(before @ scores + before_bias) + after_bias, `dropout` of them dropped."""
    # The softmax cancels a bias that is the same for all keys; its gradient is zero rather than absent.
    after_bias = after_bias + 0 * before_bias
    fused = q.is_cuda and dropout == 0.0 and HAS_TRITON and q.dtype in FUSED_DTYPES and q.shape[1] <= FUSED_HEADS
    if fused:
        return fused_attention(q, k, v, before, after, after_bias).transpose(1, 2)
    return plain_attention(q, k, v, before, after, after_bias, dropout)


def plain_attention(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n c"],
    before: Float[Tensor, "h h"],
    after: Float[Tensor, "h h"],
    after_bias: Float[Tensor, " h"],
    dropout: float,
) -> Float[Tensor, "b h n c"]:
    """In torch's own operations, for every device and dtype."""
    # Heads lead, so that mixing is one product [h, h] @ [h, b n n] without a copy. Forward and backward on two cores
    # at b=8, n=196, c=48, eager: 21 ms for 8 heads and 11 ms for 4, against 37 and 20 with heads last (as in timm),
    # 33 and 17 with one product an image; compiled 20 and 11 against 40 and 21.
    b, h, n, c = q.shape
    q, k, v = (x.transpose(0, 1) for x in (q * c**-0.5, k, v))
    scores = (q @ k.transpose(2, 3)).reshape(h, -1)
    weights = (before @ scores).view(h, b, n, n).softmax(3)
    weights = torch.addmm(after_bias[:, None], after, weights.view(h, -1)).view(h, b, n, n)
    if dropout > 0.0:
        weights = F.dropout(weights, dropout)
    return (weights @ v).transpose(0, 1)


@torch.library.custom_op("alltokens::talking_heads", mutates_args=())
def fused_attention(q: Tensor, k: Tensor, v: Tensor, before: Tensor, after: Tensor, after_bias: Tensor) -> Tensor:
    """The same in Triton kernels, laid out [b, n, h, c]; one operation to torch.compile."""
    from alltokens.models import talking_heads_kernels

    with torch.cuda.device_of(q):
        return talking_heads_kernels.forward(q, k, v, before, after, after_bias)


@torch.library.custom_op("alltokens::talking_heads_backward", mutates_args=())
def fused_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, before: Tensor, after: Tensor, after_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, laid out [b, n, h, c], and of before, after, after_bias."""
    from alltokens.models import talking_heads_kernels

    with torch.cuda.device_of(q):
        return talking_heads_kernels.backward(gradient, q, k, v, before, after, after_bias)


@fused_attention.register_fake
def fake_attention(q: Tensor, k: Tensor, v: Tensor, before: Tensor, after: Tensor, after_bias: Tensor) -> Tensor:
    """Shape and layout of the output."""
    b, h, n, c = q.shape
    return q.new_empty(b, n, h, c)


@fused_backward.register_fake
def fake_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, before: Tensor, after: Tensor, after_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Shapes and layouts of the gradients."""
    dq, dk, dv = (torch.empty_like(gradient, memory_format=torch.contiguous_format) for _ in range(3))
    return dq, dk, dv, before.new_empty(before.shape), after.new_empty(after.shape), after_bias.new_empty(q.shape[1])


def save_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Nothing of size n x n is kept for the backward pass."""
    ctx.save_for_backward(*inputs)


def gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
    """In the order of the inputs."""
    dq, dk, dv, *mixing = fused_backward(gradient, *ctx.saved_tensors)
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2), *mixing


fused_attention.register_autograd(gradients, setup_context=save_inputs)


def attention_flops(q: torch.Size) -> int:
    """Two products with tokens and two with heads for every pair of tokens."""
    b, h, n, c = q
    return 2 * b * h * n * n * (2 * c + 2 * h)


@register_flop_formula(torch.ops.alltokens.talking_heads)
def forward_flops(q: torch.Size, *_: Any, **__: Any) -> int:
    """As many as the plain operations have."""
    return attention_flops(q)


@register_flop_formula(torch.ops.alltokens.talking_heads_backward)
def backward_flops(gradient: torch.Size, q: torch.Size, *_: Any, **__: Any) -> int:
    """Every product of the forward pass has two in the backward pass; what is computed again is not counted."""
    return 2 * attention_flops(q)
