"""How the images of a batch are mixed, drawn from their seeds, and a model's answer on the mixture."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from alltokens.errors import UserError, require
from alltokens.labels.align import SparseTargets
from alltokens.mix.draws import Purpose
from alltokens.mix.pixel_mix import PixelMix
from alltokens.mix.token_mix import TokenMix, check_alpha, numbers_of_pairs
from alltokens.models.prediction import Prediction
from alltokens.models.timm_model import TimmClassifier
from alltokens.models.vit import VisionTransformer
from alltokens.objectives.losses import token_cross_entropies
from alltokens.shapes import Bool, Float, Int

Model = VisionTransformer | TimmClassifier


@dataclass(frozen=True, kw_only=True)
class MixConfig:
    """How neighbours in a batch are mixed with each other, in pairs."""

    kind: Literal["token", "cutmix", "mixup", "cutmix_or_mixup", "token_and_mixup", "none"] = "token"
    """A box of tokens (MixToken) or of pixels from the partner, pixels blended, one of the last two for each pair, the
    first and the third for every pair, or nothing."""
    alpha: float = 1.0
    """The share that stays follows Beta(alpha, alpha)."""
    mixup_alpha: float | None = None
    """Mixup's alpha beside that of boxes (DeiT: 0.8 beside CutMix's 1.0, with an even chance of each)."""
    probability: float = 1.0
    """Share of the pairs that are mixed."""

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        require(
            0 < self.probability <= 1,
            f"probability must be above 0 and at most 1; got probability={self.probability}, use kind=none for no mix",
        )
        require(
            self.kind != "none" or (self.alpha, self.probability) == (1.0, 1.0),
            f"alpha and probability have no effect with kind=none; got alpha={self.alpha}, "
            f"probability={self.probability}, leave both out",
        )
        require(
            (self.kind in ("cutmix_or_mixup", "token_and_mixup")) == (self.mixup_alpha is not None),
            "mixup_alpha goes with kind=cutmix_or_mixup and kind=token_and_mixup, and with no other; "
            f"got kind={self.kind}, mixup_alpha={self.mixup_alpha}",
        )
        if self.mixup_alpha is not None:
            check_alpha(self.mixup_alpha, "mixup_alpha")


@dataclass(frozen=True)
class BatchMix:
    """What was drawn for a batch: boxes from the partner, blending with it, both, or nothing."""

    boxes: TokenMix | PixelMix | None = None
    blend: PixelMix | None = None

    def predict(self, model: Model, images: Float[Tensor, "b c H W"]) -> Prediction:
        """The model's answer on mixed images; boxes of tokens are swapped after the embedding (TL, eq. 5)."""
        if isinstance(self.boxes, TokenMix):
            assert isinstance(model, VisionTransformer)
            return model.classify(model.encode(self.boxes.swap(model.embed(BatchMix(blend=self.blend).pixels(images)))))
        return model(self.pixels(images))

    def pixels(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b c H W"]:
        """Mixed images; boxes of tokens are boxes of the pixels under them, for a network that has other tokens."""
        for part in (self.blend, self.boxes):
            if part is not None:
                images = PixelMix(part.swapped, part.partner, part.weight).swap(images)
        return images

    def image_targets(self, targets: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        """The targets of mixed images, weighed by what is left of each (TL, eq. 7)."""
        for part in (self.boxes, self.blend):
            targets = targets if part is None else part.blend(targets)
        return targets

    def token_loss(
        self,
        token_logits: Float[Tensor, "b n k"],
        targets: SparseTargets,
        participating: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean over images of the cross-entropy of mixed tokens with the targets of what they show (TL, eq. 6)."""
        targets = targets if self.boxes is None else targets.each(self.boxes.swap_targets)
        losses = token_cross_entropies(token_logits, targets, participating)
        if self.blend is not None:
            # Linear in its target: two losses are blended where two sparse targets would have to be joined.
            partner = self.blend.partner
            of_partner = token_cross_entropies(token_logits, targets.each(lambda part: part[partner]), participating)
            losses = torch.lerp(of_partner, losses, self.blend.weight.to(losses.dtype))
        return losses.mean()


def draw_mix(config: MixConfig, seeds: Int[Tensor, " b"], model: Model, token_targets: bool) -> BatchMix:
    """The mix that the seeds of a batch decide; boxes of pixels keep to whole tokens where tokens have targets."""
    if config.kind == "none":
        return BatchMix()
    mixed, blended = numbers_of_pairs(seeds, Purpose.CHOICE, 2).repeat_interleave(2, 0).unbind(1)
    mixed = mixed < config.probability
    if config.kind == "mixup":
        return BatchMix(blend=PixelMix.mixup_of_pairs(seeds, config.alpha).only(mixed))
    of_tokens = config.kind in ("token", "token_and_mixup")
    boxes: TokenMix | PixelMix
    if of_tokens and isinstance(model, VisionTransformer):
        boxes = TokenMix.of_pairs(seeds, grid_of(model), config.alpha)
    else:
        grid = grid_of(model) if of_tokens or token_targets else model.config.image_size
        boxes = PixelMix.cutmix_of_pairs(seeds, grid, config.alpha)
    if config.mixup_alpha is None:
        return BatchMix(boxes.only(mixed))
    if config.kind == "token_and_mixup":
        blend = PixelMix.mixup_of_pairs(seeds, config.mixup_alpha, Purpose.BLEND)
        return BatchMix(boxes.only(mixed), blend.only(mixed))
    blend = PixelMix.mixup_of_pairs(seeds, config.mixup_alpha)
    return BatchMix(boxes.only(mixed & (blended >= 0.5)), blend.only(mixed & (blended < 0.5)))


def grid_of(model: Model) -> tuple[int, int]:
    """Rows and columns of tokens."""
    return model.config.grid if isinstance(model, VisionTransformer) else model.grid


def as_model(model: nn.Module) -> Model:
    """The model, if objectives can train it."""
    if isinstance(model, VisionTransformer | TimmClassifier):
        return model
    raise UserError(f"objectives train what alltokens.create_model builds; got a {type(model).__name__}")
