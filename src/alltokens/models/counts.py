"""Parameters and multiply-adds of an architecture, counted on the meta device without computing anything."""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from alltokens.models.config import LayerScale, Plain, Scaled, ViTConfig
from alltokens.models.vit import VisionTransformer


@dataclass(frozen=True)
class Counts:
    """What a model costs."""

    parameters: int
    """Parameters, heads included."""
    flops: int
    """Multiply-adds for one image, attention products and every head included, as the papers count."""

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.parameters + other.parameters, self.flops + other.flops)

    def __mul__(self, times: int) -> "Counts":
        return Counts(self.parameters * times, self.flops * times)


@dataclass(frozen=True)
class ShortCounts:
    """Counts of a model with few blocks, and of each of these blocks."""

    model: Counts
    blocks: tuple[Counts, ...]


def count(config: ViTConfig) -> Counts:
    """The counts of the whole model, measured on one or two blocks: every further block of a kind costs the same."""
    # Measured directly, 60 blocks take a second.
    at, depth = config.class_token_at, config.depth
    if at is None or at in (0, depth):
        measured = measure(shortened(config, depth=1, class_token_at=1 if at == depth else at))
        return measured.model + measured.blocks[0] * (depth - 1)
    # Blocks before the class token joins see one token less than those after.
    measured = measure(shortened(config, depth=2, class_token_at=1))
    before, after = measured.blocks
    return measured.model + before * (at - 1) + after * (depth - at - 1)


def shortened(config: ViTConfig, depth: int, class_token_at: int | None) -> ViTConfig:
    """Few blocks, and one value for whatever changes no count, so that many models share a measurement."""
    residual = config.residual
    match residual:
        case Scaled():
            residual = Plain()
        case LayerScale():
            residual = LayerScale(learned=residual.learned)
    return replace(
        config,
        depth=depth,
        class_token_at=class_token_at,
        residual=residual,
        drop_path=0.0,
        drop_path_rule="constant",
        dropout=0.0,
        attention_dropout=0.0,
        head_dropout=0.0,
        token_weight=0.0,
    )


@cache
def measure(config: ViTConfig) -> ShortCounts:
    """Build the model and run one image through it."""
    with torch.device("meta"):
        model = VisionTransformer(config).eval().requires_grad_(False)
    images = torch.empty(1, config.channels, *config.image_size, device="meta")
    # The counter knows the fused attention kernels of some devices only; the plain one is matrix products everywhere.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(images)
    by_module = counter.get_flop_counts()

    def counts(module: nn.Module, name: str) -> Counts:
        # The counter counts a multiplication and an addition as two.
        return Counts(sum(x.numel() for x in module.parameters()), sum(by_module[name].values()) // 2)

    blocks = (counts(block, f"VisionTransformer.blocks.{place}") for place, block in enumerate(model.blocks))
    return ShortCounts(counts(model, "Global"), tuple(blocks))
