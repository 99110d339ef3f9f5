"""The model families of the papers as functions: what their members share is written here once."""

from dataclasses import replace

from alltokens.models.config import (
    ClassAttention,
    ConvStem,
    LayerNorm,
    LayerScale,
    Plain,
    Residual,
    Scaled,
    T2TStem,
    ViTConfig,
)

THREE_THINGS_DROP_PATH = {192: 0.0, 384: 0.05, 768: 0.1, 1024: 0.4}
"""Rate of each width (3T, section 2.2); printed for a width only, so deeper models of that width keep it."""


def at_size(config: ViTConfig, pixels: int) -> ViTConfig:
    """The same model for square images of another size."""
    return replace(config, image_size=(pixels, pixels))


def deit(width: int, depth: int, heads: int, *, distilled: bool = False) -> ViTConfig:
    """ViT with DeiT's drop path, which rises over the depth."""
    return ViTConfig(width=width, depth=depth, heads=heads, distillation_token=distilled, drop_path=0.1)


def deit3(width: int, depth: int, heads: int) -> ViTConfig:
    """DeiT III as released: LayerScale, and no position for the class token."""
    residual = LayerScale(initial=layer_scale_gain(depth))
    return ViTConfig(width=width, depth=depth, heads=heads, class_position=False, residual=residual)


def layer_scale_gain(blocks: int) -> float:
    """First gain for a number of blocks (CaiT, section 2)."""
    if blocks <= 18:
        return 0.1
    return 1e-5 if blocks <= 24 else 1e-6


def parallel(width: int, depth: int, heads: int, *, branches: int, layer_scale: bool = False) -> ViTConfig:
    """3T's ViT: `depth` blocks of `branches` attentions, then as many MLPs."""
    # 3T sets its drop rates "following" CaiT, whose rates are uniform over depth: hence the constant rule. It prints no
    # first gain: CaiT's rule on the count of all blocks leaves a parallel model and its sequential twin alike.
    residual: Residual = LayerScale(initial=layer_scale_gain(depth * branches)) if layer_scale else Plain()
    return ViTConfig(
        width=width,
        depth=depth,
        heads=heads,
        branches=branches,
        residual=residual,
        drop_path=THREE_THINGS_DROP_PATH[width],
        drop_path_rule="constant",
    )


def vit(width: int, depth: int, heads: int, *, layer_scale: bool = False) -> ViTConfig:
    """3T's baseline: one branch a block."""
    return parallel(width, depth, heads, branches=1, layer_scale=layer_scale)


def lvvit(
    width: int, depth: int, heads: int, *, divide_by: float = 1.0, drop_path: float = 0.1, stem_channels: int = 64
) -> ViTConfig:
    """LV-ViT: convolutional stem, narrower MLP, divided residuals, a head for every token (TL, Table 1)."""
    return ViTConfig(
        width=width,
        depth=depth,
        heads=heads,
        mlp_ratio=3.0,
        stem=ConvStem(channels=stem_channels),
        residual=Plain() if divide_by == 1.0 else Scaled(divide_by=divide_by),
        norm=LayerNorm(eps=1e-5),
        qkv_bias=False,
        drop_path=drop_path,
        token_head=True,
        token_weight=0.5,
    )


def cait(width: int, depth: int, *, gain: float, drop_path: float) -> ViTConfig:
    """CaiT: heads of 48 channels that talk, LayerScale, two class-attention blocks (CaiT, section 4.3)."""
    return ViTConfig(
        width=width,
        depth=depth,
        heads=width // 48,
        class_position=False,
        class_token_at=depth,
        class_attention=ClassAttention(depth=2),
        attention="talking_heads",
        residual=LayerScale(initial=gain),
        drop_path=drop_path,
        drop_path_rule="constant",
    )


def t2t(width: int, depth: int, heads: int, *, transformer: bool = False) -> ViTConfig:
    """T2T-ViT: tokens-to-token stem, sinusoidal positions, narrower MLP; `transformer` makes the `t` models."""
    return ViTConfig(
        width=width,
        depth=depth,
        heads=heads,
        mlp_ratio=3.0,
        stem=T2TStem(attention="transformer" if transformer else "performer"),
        positions="sinusoidal",
        norm=LayerNorm(eps=1e-5),
        qkv_bias=False,
        drop_path=0.1,
    )
