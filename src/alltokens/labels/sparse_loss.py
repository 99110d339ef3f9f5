"""Cross-entropy of every token with its sparse target: one pass over the logits forward, one backward."""

from typing import Any

import torch
from torch import Tensor

from alltokens.errors import UserError
from alltokens.kernels import HAS_TRITON
from alltokens.labels.align import SparseTargets
from alltokens.shapes import Float, Int

FUSED_DTYPES = torch.bfloat16, torch.float16, torch.float32


def token_cross_entropy(token_logits: Float[Tensor, "b n classes"], targets: SparseTargets) -> Float[Tensor, ""]:
    """Mean over labelled tokens of -sum over classes of target * log softmax (TL, eq. 2); 0 where none is labelled."""
    got, expected = tuple(token_logits.shape), (*targets.floor.shape, targets.classes)
    if got != expected:
        raise UserError(f"token logits must have the images, tokens and classes of the targets, {expected}; got {got}")
    losses, _ = token_losses(token_logits, targets.ids, targets.values, targets.floor)
    return torch.where(targets.labelled, losses, 0).sum() / targets.labelled.sum().clamp(min=1)


def plain_losses(
    logits: Float[Tensor, "b n classes"],
    ids: Int[Tensor, "b n s"],
    values: Float[Tensor, "b n s"],
    floor: Float[Tensor, "b n"],
) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b n"]]:
    """Each token's cross-entropy and the log-sum-exp of its logits, in torch's own operations."""
    log_softmax = logits.log_softmax(-1, dtype=wide(logits))
    named = (values * log_softmax.gather(-1, ids.long())).sum(-1)
    return -named - floor * log_softmax.sum(-1), logits[..., 0] - log_softmax[..., 0]


def plain_backward(
    gradient: Float[Tensor, "b n"],
    logits: Float[Tensor, "b n classes"],
    ids: Int[Tensor, "b n s"],
    values: Float[Tensor, "b n s"],
    floor: Float[Tensor, "b n"],
) -> Float[Tensor, "b n classes"]:
    """gradient * (mass * softmax - target), where mass is the sum of the target."""
    mass = values.sum(-1) + floor * logits.shape[-1]
    # In place: autograd's own would make a tensor of this size for the softmax, the gather and the sum each.
    out = logits.softmax(-1, dtype=wide(logits))
    out.mul_((gradient * mass)[..., None]).sub_((gradient * floor)[..., None])
    out.scatter_add_(-1, ids.long(), (-gradient[..., None] * values).to(out.dtype))
    return out.to(logits.dtype, memory_format=torch.contiguous_format)


def wide(logits: Tensor) -> torch.dtype:
    """What sums are kept in: float32 at least."""
    return torch.promote_types(logits.dtype, torch.float32)


def is_fused(logits: Tensor) -> bool:
    """Whether the Triton kernels take these logits."""
    return logits.is_cuda and HAS_TRITON and logits.dtype in FUSED_DTYPES


@torch.library.custom_op("alltokens::token_losses", mutates_args=())
def token_losses(logits: Tensor, ids: Tensor, values: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and log-sum-exps [b, n]; one operation to torch.compile, one kernel on a GPU."""
    return kernel_losses(logits, ids, values, floor) if is_fused(logits) else plain_losses(logits, ids, values, floor)


@torch.library.custom_op("alltokens::token_losses_backward", mutates_args=())
def losses_backward(
    gradient: Tensor, logits: Tensor, normalizer: Tensor, ids: Tensor, values: Tensor, floor: Tensor
) -> Tensor:
    """The gradient of the logits from that of the losses."""
    if is_fused(logits):
        return kernel_backward(gradient, logits, normalizer, ids, values, floor)
    return plain_backward(gradient, logits, ids, values, floor)


def kernel_losses(logits: Tensor, ids: Tensor, values: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """`plain_losses` as one Triton kernel."""
    from alltokens.labels import sparse_loss_kernels

    with torch.cuda.device_of(logits):
        return sparse_loss_kernels.forward(logits, ids, values, floor)


def kernel_backward(
    gradient: Tensor, logits: Tensor, normalizer: Tensor, ids: Tensor, values: Tensor, floor: Tensor
) -> Tensor:
    """`plain_backward` as one Triton kernel."""
    from alltokens.labels import sparse_loss_kernels

    with torch.cuda.device_of(logits):
        return sparse_loss_kernels.backward(gradient, logits, normalizer, ids, values, floor)


@token_losses.register_fake
def fake_losses(logits: Tensor, ids: Tensor, values: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers a token."""
    losses = logits.new_empty(logits.shape[:2], dtype=wide(logits))
    return losses, torch.empty_like(losses)


@losses_backward.register_fake
def fake_backward(
    gradient: Tensor, logits: Tensor, normalizer: Tensor, ids: Tensor, values: Tensor, floor: Tensor
) -> Tensor:
    """The logits' shape, without gaps."""
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def save_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    """With the log-sum-exps, the backward pass needs each logit once."""
    logits, *target = inputs
    ctx.save_for_backward(logits, output[1], *target)


def gradients(ctx: Any, of_losses: Tensor, of_normalizers: Tensor) -> tuple[Tensor | None, ...]:
    """Targets have none, and nobody sees the log-sum-exps."""
    return losses_backward(of_losses, *ctx.saved_tensors), None, None, None


token_losses.register_autograd(gradients, setup_context=save_inputs)
