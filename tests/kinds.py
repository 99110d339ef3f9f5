"""Tiny models that together have every kind of part, and weights that hide none of them."""

from dataclasses import replace

import torch
from torch import nn

from alltokens.models.block import Gain
from alltokens.models.config import (
    ClassAttention,
    ConvStem,
    Fixup,
    GroupNorm,
    HMLPStem,
    LayerScale,
    LeViTStem,
    LinearStem,
    LocalStem,
    NoNorm,
    Plain,
    ScalarGain,
    Scaled,
    T2TStem,
    TFixup,
    ViTConfig,
)
from alltokens.models.norms import TokenNorm
from alltokens.models.t2t import Performer, TokenModule
from alltokens.models.vit import VisionTransformer

TINY = ViTConfig(width=24, depth=2, heads=2, image_size=(32, 48), classes=5)
LATE = replace(TINY, class_token_at=2, class_position=False, class_attention=ClassAttention(depth=2))
CAIT = replace(LATE, attention="talking_heads", residual=LayerScale(initial=1.0))
CONV_STEM = ConvStem(channels=8)

KINDS = {
    "vit": TINY,
    "distilled": replace(TINY, distillation_token=True),
    "lvvit": replace(
        TINY, stem=CONV_STEM, residual=Scaled(), qkv_bias=False, mlp_ratio=3.0, token_head=True, token_weight=0.5
    ),
    "cait": CAIT,
    "cait distilled": replace(CAIT, distillation_token=True, token_head=True),
    "class outside its keys": replace(LATE, class_attention=ClassAttention(depth=1, class_in_keys=False)),
    "class residual of its own": replace(
        CAIT, class_attention=ClassAttention(depth=1, residual=Plain()), qkv_bias=False
    ),
    "late class token": replace(TINY, class_token_at=1, class_position=False),
    "average pool": replace(TINY, class_token_at=None, class_position=False),
    "parallel": replace(TINY, branches=2),
    "parallel cait": replace(CAIT, branches=2),
    "parallel without bias": replace(TINY, branches=3, qkv_bias=False, residual=LayerScale(initial=1.0)),
    "parallel relative": replace(TINY, branches=2, positions="relative", residual=ScalarGain(initial=1.0)),
    "linear stem with norm": replace(TINY, stem=LinearStem(norm="batch", activation="gelu")),
    "conv stem with layer norm": replace(TINY, stem=ConvStem(channels=8, norm="layer", activation="gelu")),
    "conv stem without norm": replace(TINY, stem=ConvStem(channels=8, norm="none")),
    "hmlp stem": replace(TINY, stem=HMLPStem()),
    "hmlp stem with layer norm": replace(TINY, stem=HMLPStem(norm="layer")),
    "levit stem": replace(TINY, stem=LeViTStem()),
    "local stem": replace(TINY, stem=LocalStem(subpatch=8, width=16, depth=1, heads=2)),
    "t2t stem": replace(TINY, stem=T2TStem(width=8, features=6)),
    "t2t stem with a transformer": replace(TINY, stem=T2TStem(attention="transformer", width=8)),
    "sinusoidal": replace(TINY, positions="sinusoidal"),
    "relative": replace(TINY, positions="relative"),
    "relative without class position": replace(
        TINY, positions="relative", class_position=False, class_token_at=1, token_head=True
    ),
    "no positions": replace(TINY, positions="none", class_position=False),
    "group norm": replace(TINY, norm=GroupNorm(groups=3)),
    "parallel group norm": replace(TINY, norm=GroupNorm(groups=2), branches=2),
    "post norm": replace(TINY, norm_position="post"),
    "frozen gains": replace(TINY, residual=LayerScale(initial=1.0, learned=False)),
    "fixup": replace(TINY, residual=Fixup(), norm=NoNorm()),
    "tfixup": replace(TINY, residual=TFixup(), norm=NoNorm()),
    "wide heads": replace(TINY, head_width=16),
}
DROPPING = replace(
    TINY, branches=2, drop_path=0.5, drop_path_rule="constant", attention_dropout=0.2, head_dropout=0.2, classes=3
)


@torch.no_grad()
def lively(config: ViTConfig, seed: int = 0) -> VisionTransformer:
    """The model with weights of an order at which every tensor matters: scales and gains near 1, the rest near 0.2."""
    generator = torch.Generator().manual_seed(seed)
    model = VisionTransformer(config)
    for module in model.modules():
        scales = isinstance(module, nn.BatchNorm2d | nn.LayerNorm | TokenNorm | Gain)
        for name, parameter in module.named_parameters(recurse=False):
            parameter.normal_(0.0, 0.2, generator=generator).add_(1.0 if scales and name == "weight" else 0.0)
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0.0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
        if isinstance(module, Performer):
            module.directions.normal_(generator=generator)
    for module in model.modules():
        if isinstance(module, TokenModule):
            # Features of long queries and keys are below the performer's eps, and its answer 0.
            module.input.weight.mul_(0.2)
    return model


def images_for(config: ViTConfig, batch: int = 2, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, config.channels, *config.image_size, generator=generator)


def answers(model: VisionTransformer, images: torch.Tensor) -> list[torch.Tensor]:
    """The logits of every head the model has."""
    return [logits for logits in model(images) if logits is not None]
