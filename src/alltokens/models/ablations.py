"""Rows of the papers' ablation tables as named architectures; a row that equals a zoo model keeps that model's name."""

from dataclasses import replace

from alltokens.models.config import (
    ClassAttention,
    ConvStem,
    Fixup,
    GroupNorm,
    LayerScale,
    LinearStem,
    Plain,
    Residual,
    ScalarGain,
    Scaled,
    TFixup,
    ViTConfig,
)
from alltokens.models.families import at_size, cait, deit, layer_scale_gain, lvvit

DEIT_S = deit(384, 12, 6)
CAIT_S36 = cait(384, 36, gain=1e-6, drop_path=0.2)

# TL-v1, Tables 3, 4, 5 and 9. Only the first row is DeiT's own model; the others are taken as LV-ViT-S less what the
# table adds later (no qkv bias, eps 1e-5: the paper prints neither). Its token head enters with token labeling.
SIXTEEN_BLOCKS = replace(lvvit(384, 16, 6), mlp_ratio=4.0, stem=LinearStem(), token_head=False, token_weight=0.0)
NARROW_MLP = replace(SIXTEEN_BLOCKS, mlp_ratio=3.0)
CONV_STEM = replace(NARROW_MLP, stem=ConvStem())

# "+ Re-labeling" changes the targets alone; "+ Token labeling" is lvvit_s, "+ Input resolution" lvvit_s_384.
TLV1_TABLE_3 = {
    "tlv1_t3_deit_s": DEIT_S,
    "tlv1_t3_depth_16": SIXTEEN_BLOCKS,
    "tlv1_t3_mlp_ratio_3": NARROW_MLP,
    "tlv1_t3_conv_stem": CONV_STEM,
    "tlv1_t3_divided_residual": replace(CONV_STEM, residual=Scaled(divide_by=2.0)),
    "tlv1_t3_relabel": replace(CONV_STEM, residual=Scaled(divide_by=2.0)),
}

KERNELS_AND_STRIDES = [
    ((7, 8), (2, 8)),
    ((7, 3, 8), (2, 2, 4)),
    ((7, 3, 8), (2, 1, 8)),
    ((7, 3, 3, 8), (2, 1, 1, 8)),
    ((7, 3, 3, 8), (2, 2, 1, 4)),
    ((7, 3, 3, 3, 3, 8), (2, 1, 1, 1, 1, 8)),
]


def joined(numbers: tuple[int, ...]) -> str:
    """Numbers with underscores between, for a name."""
    return "_".join(map(str, numbers))


TLV1_TABLE_4 = {"tlv1_t4_k16_s16": NARROW_MLP} | {
    f"tlv1_t4_k{joined(kernels)}_s{joined(strides)}": replace(
        NARROW_MLP, stem=ConvStem(kernels=kernels, strides=strides)
    )
    for kernels, strides in KERNELS_AND_STRIDES
}

TLV1_TABLE_5 = {
    "tlv1_t5_divide_by_1": CONV_STEM,
    "tlv1_t5_divide_by_2": replace(CONV_STEM, residual=Scaled(divide_by=2.0)),
    "tlv1_t5_divide_by_3": replace(CONV_STEM, residual=Scaled(divide_by=3.0)),
}

TLV1_TABLE_9 = {"tlv1_t9_layer_norm": CONV_STEM} | {
    f"tlv1_t9_group_norm_{groups}": replace(CONV_STEM, norm=GroupNorm(groups=groups)) for groups in (1, 2, 3, 6)
}

# CaiT, Table 1 and Appendix A: DeiT-S at four depths. Drop rates are printed for the baseline alone; the methods take
# CaiT's formula for its S models, max(0, 0.1 (depth / 12 - 1)), which gives Table 4's values at 24, 36 and 48 blocks.
ADJUSTED_DROP_PATH = {12: 0.05, 18: 0.10, 24: 0.20, 36: 0.25}
METHOD_DROP_PATH = {12: 0.0, 18: 0.05, 24: 0.1, 36: 0.2}


def deit_s(depth: int, drop_path: float, residual: Residual) -> ViTConfig:
    """DeiT-S of another depth, with a uniform drop rate and another residual rule."""
    return replace(DEIT_S, depth=depth, drop_path=drop_path, drop_path_rule="constant", residual=residual)


def methods(depth: int) -> dict[str, Residual]:
    """How Table 1, Table A.1 and the re-training table weigh a residual branch at this depth."""
    gain = layer_scale_gain(depth)
    return {
        "cait_t1_rezero": ScalarGain(initial=0.0),
        "cait_t1_tfixup": TFixup(),
        "cait_t1_fixup": Fixup(),
        "cait_t1_scalar": ScalarGain(initial=gain),
        "cait_t1_layerscale": LayerScale(initial=gain),
        "cait_a_zero": LayerScale(initial=0.0),
        "cait_a_uniform": LayerScale(initial=gain, draw="uniform"),
        # Frozen at the gains that a first training found: those come with its checkpoint.
        "cait_a_frozen": LayerScale(initial=gain, learned=False),
    }


CAIT_TABLES_1_AND_A = {
    f"{name}_{depth}": config
    for depth in (12, 18, 24, 36)
    for name, config in {
        "cait_t1_baseline": deit_s(depth, 0.05, Plain()),
        "cait_t1_adjusted": deit_s(depth, ADJUSTED_DROP_PATH[depth], Plain()),
        "cait_a_baseline": replace(DEIT_S, depth=depth),
        **{name: deit_s(depth, METHOD_DROP_PATH[depth], residual) for name, residual in methods(depth).items()},
    }.items()
}


def class_attention_after(trunk: int, blocks: int) -> ViTConfig:
    """DeiT-S whose class token joins after `trunk` blocks and is read by class attention (CaiT, Table 2)."""
    return replace(
        DEIT_S,
        depth=trunk,
        class_token_at=trunk,
        class_position=False,
        class_attention=ClassAttention(depth=blocks),
    )


# CaiT, Table 2.
CAIT_TABLE_2 = {
    "cait_t2_insert_0": DEIT_S,
    "cait_t2_average_pool": replace(DEIT_S, class_token_at=None, class_position=False),
    **{
        f"cait_t2_insert_{block}": replace(DEIT_S, class_token_at=block, class_position=False)
        for block in (2, 4, 8, 10, 11)
    },
    **{
        f"cait_t2_{trunk}_plus_{blocks}": class_attention_after(trunk, blocks)
        for trunk, blocks in ((9, 3), (10, 2), (11, 1), (12, 1), (12, 2), (12, 3))
    },
}

# CaiT, Table 8, each row the one above with one change. "+ CaiT architecture" and "+ Longer training" are cait_s36,
# the last three rows cait_s36_384.
TALKING_HEADS = replace(DEIT_S, heads=8, attention="talking_heads")
CAIT_TABLE_8 = {
    "cait_t8_deit_s": DEIT_S,
    "cait_t8_heads_8": replace(DEIT_S, heads=8),
    "cait_t8_talking_heads": TALKING_HEADS,
    "cait_t8_depth_36": replace(TALKING_HEADS, depth=36),
    "cait_t8_layerscale": replace(TALKING_HEADS, depth=36, residual=LayerScale(initial=1e-6)),
    "cait_t8_drop_path": replace(CAIT_S36, class_token_at=0, class_position=True, class_attention=None),
    "cait_t8_256": at_size(CAIT_S36, 256),
}

# CaiT, Table 9.
CAIT_TABLE_9 = {f"cait_t9_heads_{heads}": replace(DEIT_S, heads=heads) for heads in (1, 2, 3, 6, 8, 12, 16, 24)}

# CaiT, Appendix B.
CAIT_APPENDIX_B = {
    "cait_b_class_not_in_keys": replace(CAIT_S36, class_attention=ClassAttention(depth=2, class_in_keys=False)),
    "cait_b_no_class_layerscale": replace(CAIT_S36, class_attention=ClassAttention(depth=2, residual=Plain())),
    "cait_b_distillation_token_xxs24": replace(cait(192, 24, gain=1e-5, drop_path=0.05), distillation_token=True),
    "cait_b_distillation_token_m24": replace(cait(768, 24, gain=1e-5, drop_path=0.2), distillation_token=True),
}

ABLATIONS: dict[str, ViTConfig] = {
    **TLV1_TABLE_3,
    **TLV1_TABLE_4,
    **TLV1_TABLE_5,
    **TLV1_TABLE_9,
    **CAIT_TABLES_1_AND_A,
    **CAIT_TABLE_2,
    **CAIT_TABLE_8,
    **CAIT_TABLE_9,
    **CAIT_APPENDIX_B,
}
