"""Counts against arithmetic by hand, and the short way of counting against the direct one."""

import pytest

from alltokens.models.config import ConvStem, HMLPStem, LeViTStem, LinearStem, LocalStem, T2TStem, ViTConfig
from alltokens.models.counts import Counts, count, measure
from alltokens.models.zoo import MODELS, find


def stem_flops(config: ViTConfig) -> int:
    stem, d = config.stem, config.width
    match stem:
        case LinearStem():
            layers = [(stem.patch, stem.patch, d)]
        case ConvStem():
            channels = [stem.channels] * (len(stem.kernels) - 1) + [d]
            layers = list(zip(stem.kernels, stem.strides, channels, strict=True))
        case HMLPStem():
            layers = [(4, 4, d // 4), (2, 2, d // 4), (2, 2, d)]
        case LeViTStem():
            layers = [(3, 2, d // 8), (3, 2, d // 4), (3, 2, d // 2), (3, 2, d)]
        case LocalStem():
            patches, inner, n = config.grid[0] * config.grid[1], stem.width, (stem.patch // stem.subpatch) ** 2
            block = 12 * n * inner**2 + 2 * n**2 * inner
            return patches * (n * config.channels * stem.subpatch**2 * inner + stem.depth * block + n * inner * d)
        case T2TStem():
            return t2t_flops(config, stem)
    total, (h, w), before = 0, config.image_size, config.channels
    for kernel, stride, after in layers:
        h, w = h // stride, w // stride
        total += h * w * kernel**2 * before * after
        before = after
    return total


def t2t_flops(config: ViTConfig, stem: T2TStem) -> int:
    total, inner, channels, pixels = 0, stem.width, config.channels, config.image_size[0] * config.image_size[1]
    for n, kernel in ((pixels // 4**2, 7), (pixels // 8**2, 3)):
        # A performer makes features of queries and keys, multiplies them with values, and once with their sum.
        attention = n * 32 * (4 * inner + 1) if stem.attention == "performer" else 2 * n**2 * inner
        total += 3 * n * kernel**2 * channels * inner + attention + 3 * n * inner**2
        channels = inner
    return total + pixels // 16**2 * 9 * inner * config.width


def block_flops(config: ViTConfig, m: int) -> int:
    d, talking = config.width, config.attention == "talking_heads"
    attention = 4 * m * d * d + 2 * m * m * d + 2 * m * m * config.heads**2 * talking
    return config.branches * (attention + 2 * m * d * config.mlp_width)


def class_block_flops(config: ViTConfig, n: int) -> int:
    assert config.class_attention is not None
    d, t = config.width, config.class_tokens
    keys = n + t * config.class_attention.class_in_keys
    return 2 * t * d * d + 2 * keys * d * d + 2 * t * keys * d + 2 * t * d * config.mlp_width


def flops_by_hand(config: ViTConfig) -> int:
    n = config.grid[0] * config.grid[1]
    joins = config.depth if config.class_token_at is None else config.class_token_at
    before, after = block_flops(config, n), block_flops(config, n + config.class_tokens)
    trunk = joins * before + (config.depth - joins) * after
    reading = 0 if config.class_attention is None else config.class_attention.depth * class_block_flops(config, n)
    answers = 1 + n * config.token_head + config.distillation_token
    return stem_flops(config) + trunk + reading + answers * config.width * config.classes


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_counted_by_hand(name: str) -> None:
    assert count(find(name)).flops == flops_by_hand(find(name))


EACH_KIND = """
    vit_ti deit_ti_distilled lvvit_t_288 cait_xxs24 vit_ti_12x2 vit_b_local vit_b_hmlp_ln tlv1_t9_group_norm_3
    cait_t1_fixup_18 cait_t2_insert_4 cait_t2_insert_11 cait_t2_average_pool cait_t2_10_plus_2 cait_a_frozen_12
    cait_b_distillation_token_xxs24 t2t_vit_14 t2t_vit_t_14
"""


@pytest.mark.parametrize("name", EACH_KIND.split())
def test_counting_few_blocks_gives_the_counts_of_the_whole_model(name: str) -> None:
    assert count(find(name)) == measure(find(name)).model


def test_counts_add_up() -> None:
    assert Counts(1, 2) + Counts(3, 4) * 2 == Counts(7, 10)
