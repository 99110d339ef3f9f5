"""What objectives answer, and the cross-entropies in it: means over images, so that a batch can be split."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from alltokens.labels.align import SparseTargets
from alltokens.labels.sparse_loss import token_losses, wide
from alltokens.shapes import Bool, Float


@dataclass(frozen=True, eq=False)
class Losses:
    """What is minimised, and what it consists of."""

    total: Float[Tensor, ""]
    """The mean over the images of the batch; gradients come from here."""
    parts: dict[str, Tensor]
    """Numbers to report, detached and still on the device."""


def image_cross_entropy(image_logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"]) -> Float[Tensor, ""]:
    """Mean over images of -sum over classes of target * log softmax, in float32 at least."""
    return -(targets * image_logits.log_softmax(-1, dtype=wide(image_logits))).sum(-1).mean()


def binary_cross_entropy(image_logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"]) -> Float[Tensor, ""]:
    """Mean over images and classes of the cross-entropy of sigmoids, in float32 at least.

    A mixed image has its share of each class as the target, not a threshold's 0 or 1: timm's loss as it comes.
    """
    logits = image_logits.to(wide(image_logits))
    return F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))


def token_cross_entropies(
    token_logits: Float[Tensor, "b n k"], targets: SparseTargets, participating: Bool[Tensor, "b n"] | None = None
) -> Float[Tensor, " b"]:
    """Each image's mean over those of its tokens that have a label and participate (TL, eq. 2); 0 where none does.

    A mean over the tokens of a whole batch would depend on which images meet in it, and differ between processes.
    """
    losses, _ = token_losses(token_logits, targets.ids, targets.values, targets.floor)
    counted = targets.labelled if participating is None else targets.labelled & participating
    return torch.where(counted, losses, 0).sum(1) / counted.sum(1).clamp(min=1)
