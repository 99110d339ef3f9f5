"""What the config refuses, with which sentence, and what it works out."""

from dataclasses import FrozenInstanceError, replace
from math import inf, nan
from typing import Any

import pytest

from alltokens.errors import UserError
from alltokens.models.config import (
    ClassAttention,
    ConvStem,
    Fixup,
    GroupNorm,
    HMLPStem,
    LayerNorm,
    LayerScale,
    LeViTStem,
    LinearStem,
    LocalStem,
    NoNorm,
    Plain,
    ScalarGain,
    Scaled,
    ViTConfig,
)

TINY = ViTConfig(width=8, depth=2, heads=2, image_size=(32, 48))
READ = replace(TINY, class_token_at=2, class_position=False, class_attention=ClassAttention())

SIZES = [
    *[
        ({name: value}, f"{name} must be above 0; got {name}={value}")
        for name in ("width", "depth", "heads", "branches", "channels", "classes", "head_width")
        for value in (0, -1)
    ],
    ({"mlp_ratio": 0.0}, "mlp_ratio must be above 0; got mlp_ratio=0.0"),
    ({"stem": HMLPStem(), "width": 6}, "width must be divisible by 4 for a HMLPStem; got width=6"),
    ({"stem": LeViTStem(), "width": 12}, "width must be divisible by 8 for a LeViTStem; got width=12"),
    ({"token_weight": -0.5}, "token_weight must be at least 0; got token_weight=-0.5"),
    ({"heads": 3}, "width must be divisible by heads; got width=8, heads=3"),
    ({"image_size": (40, 48)}, "image_size must be a multiple of the patch; got 40 x 48 with patch 16"),
    ({"image_size": (32, 40)}, "image_size must be a multiple of the patch; got 32 x 40 with patch 16"),
    ({"image_size": (0, 48)}, "image_size must be above 0; got image_size=(0, 48)"),
    ({"image_size": (32, -16)}, "image_size must be above 0; got image_size=(32, -16)"),
    ({"norm": GroupNorm(groups=3)}, "width must be divisible by norm.groups; got width=8, groups=3"),
    *[
        ({name: value}, f"{name} must be at least 0 and below 1; got {name}={value}")
        for name in ("drop_path", "dropout", "attention_dropout", "head_dropout")
        for value in (1.0, -0.1)
    ],
]

CLASS_TOKEN = [
    ({"class_token_at": 3}, "class_token_at must be None or between 0 and depth; got class_token_at=3, depth=2"),
    ({"class_token_at": -1}, "class_token_at must be None or between 0 and depth; got class_token_at=-1, depth=2"),
    (
        {"class_attention": ClassAttention()},
        "class attention needs a class token that joins after the trunk; got class_token_at=0, depth=2",
    ),
    (
        {"class_attention": ClassAttention(), "class_token_at": None},
        "class attention needs a class token that joins after the trunk; got class_token_at=None, depth=2",
    ),
    (
        {"class_attention": ClassAttention(), "class_token_at": 2, "norm_position": "post"},
        "class attention is defined for norm_position=pre; got post",
    ),
    (
        {"class_attention": ClassAttention(), "class_token_at": 2, "residual": Fixup()},
        "class attention is not defined with Fixup; give class_attention.residual another rule",
    ),
    (
        {"class_attention": ClassAttention(residual=Fixup()), "class_token_at": 2},
        "class attention is not defined with Fixup; give class_attention.residual another rule",
    ),
    (
        {"class_token_at": 2},
        "class_token_at=2 is after the trunk (depth=2), where only class attention can read it; "
        "give class_attention or a smaller class_token_at",
    ),
    (
        {"class_token_at": None, "class_position": False, "distillation_token": True},
        "a distillation token needs a class token beside it; got class_token_at=None",
    ),
    *[
        (
            {"positions": positions, "class_token_at": at},
            f"class_position has no effect with positions={positions} and class_token_at={at}; set it to False",
        )
        for positions, at in [
            ("none", 0),
            ("learned", 1),
            ("learned", None),
            ("sinusoidal", 1),
            ("sinusoidal", None),
            ("relative", None),
        ]
    ],
    (
        {"positions": "relative", "class_token_at": 2, "class_attention": ClassAttention()},
        "class_position has no effect with positions=relative and class_token_at=2; set it to False",
    ),
]

COMBINATIONS = [
    ({"branches": 2, "norm_position": "post"}, "post norm is defined for one branch; got branches=2"),
    ({"branches": 3, "residual": Fixup()}, "Fixup is defined for one branch; got branches=3"),
    ({"norm": NoNorm(), "norm_position": "post"}, "norm_position=post needs a norm; got NoNorm"),
    (
        {"attention": "talking_heads", "positions": "relative"},
        "relative positions need attention=dot_product; got talking_heads",
    ),
    ({"token_weight": 0.5}, "token_weight needs a token head; got token_weight=0.5, token_head=False"),
]


@pytest.mark.parametrize(("changes", "sentence"), [*SIZES, *CLASS_TOKEN, *COMBINATIONS])
def test_a_wrong_config_is_answered_with_its_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        replace(TINY, **changes)
    assert str(error.value) == sentence


@pytest.mark.parametrize("number", [inf, nan])
@pytest.mark.parametrize(
    "name", ["mlp_ratio", "drop_path", "dropout", "attention_dropout", "head_dropout", "token_weight"]
)
def test_a_number_of_a_config_is_finite(name: str, number: float) -> None:
    with pytest.raises(UserError) as error:
        replace(TINY, **{name: number})
    assert str(error.value) == f"{name} must be a finite number; got {name}={number}"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"residual": Scaled(divide_by=inf)}, "residual.divide_by must be a finite number; got residual.divide_by=inf"),
        ({"residual": LayerScale(initial=inf)}, "residual.initial must be a finite number; got residual.initial=inf"),
        ({"residual": ScalarGain(initial=-inf)}, "residual.initial must be a finite number; got residual.initial=-inf"),
        ({"norm": LayerNorm(eps=nan)}, "norm.eps must be a finite number; got norm.eps=nan"),
        ({"norm": GroupNorm(eps=inf)}, "norm.eps must be a finite number; got norm.eps=inf"),
        (
            {"class_attention": ClassAttention(residual=ScalarGain(initial=nan))},
            "class_attention.residual.initial must be a finite number; got class_attention.residual.initial=nan",
        ),
    ],
)
def test_so_is_a_number_of_its_parts(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        replace(READ, **changes)
    assert str(error.value) == sentence


ONE_KERNEL = "a conv stem needs as many kernels as strides, two at least (one is a linear stem); got "


@pytest.mark.parametrize(
    ("part", "fields", "sentence"),
    [
        (ConvStem, {"kernels": (7, 3), "strides": (2,)}, ONE_KERNEL + "kernels=(7, 3), strides=(2,)"),
        (ConvStem, {"kernels": (), "strides": ()}, ONE_KERNEL + "kernels=(), strides=()"),
        (ConvStem, {"kernels": (16,), "strides": (16,)}, ONE_KERNEL + "kernels=(16,), strides=(16,)"),
        (
            ConvStem,
            {"kernels": (2, 16), "strides": (1, 16)},
            "a convolution of stride 1 needs an odd kernel to keep its size; got kernels=(2, 16), strides=(1, 16)",
        ),
        (ConvStem, {"strides": (2, 0, 1, 8)}, "stem.strides must be above 0; got stem.strides=(2, 0, 1, 8)"),
        (ConvStem, {"channels": 0}, "stem.channels must be above 0; got stem.channels=0"),
        (LinearStem, {"patch": 0}, "stem.patch must be above 0; got stem.patch=0"),
        (LocalStem, {"patch": 16, "subpatch": 5}, "patch must be divisible by subpatch; got patch=16, subpatch=5"),
        (LocalStem, {"depth": 0}, "stem.depth must be above 0; got stem.depth=0"),
        (
            LocalStem,
            {"width": 10, "heads": 4},
            "the local stem's width must be divisible by its heads; got width=10, heads=4",
        ),
        (Scaled, {"divide_by": 0.0}, "residual.divide_by must be above 0; got residual.divide_by=0.0"),
        (LayerScale, {"initial": -1.0}, "residual.initial must be at least 0; got residual.initial=-1.0"),
        (GroupNorm, {"groups": 0}, "norm.groups must be above 0; got norm.groups=0"),
        (ClassAttention, {"depth": 0}, "class_attention.depth must be above 0; got class_attention.depth=0"),
    ],
)
def test_a_wrong_part_is_answered_with_its_sentence(part: type, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        part(**fields)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 3, "head_width": 5},
        {"class_token_at": 1, "class_position": False},
        {"class_token_at": 1, "positions": "relative"},
        {"class_token_at": None, "class_position": False},
        {"class_token_at": None, "class_position": False, "positions": "relative"},
        {"class_position": False, "positions": "relative"},
        {"class_position": False, "positions": "none"},
        {"distillation_token": True, "token_head": True, "token_weight": 0.5},
        {"norm_position": "post", "residual": Fixup()},
        {"norm": NoNorm(), "residual": Fixup()},
        {"branches": 4, "norm": GroupNorm(groups=8), "residual": LayerScale(initial=0.1)},
        {"branches": 2, "attention": "talking_heads"},
        {"drop_path": 0.0, "dropout": 0.99},
    ],
)
def test_a_valid_combination_is_accepted(changes: dict[str, Any]) -> None:
    replace(TINY, **changes)


def test_class_attention_goes_with_a_trunk_under_fixup_when_it_has_a_rule_of_its_own() -> None:
    config = replace(READ, residual=Fixup(), class_attention=ClassAttention(residual=Plain()))
    assert config.class_residual == Plain()


def test_class_attention_takes_the_trunks_rule_unless_it_has_its_own() -> None:
    scaled = replace(READ, residual=Scaled())
    assert scaled.class_residual == Scaled()
    assert replace(scaled, class_attention=ClassAttention(residual=Plain())).class_residual == Plain()


@pytest.mark.parametrize(
    ("stem", "patch"),
    [
        (LinearStem(patch=8), 8),
        (ConvStem(), 16),
        (ConvStem(kernels=(7, 3, 8), strides=(2, 2, 2)), 8),
        (HMLPStem(), 16),
        (LeViTStem(), 16),
        (LocalStem(patch=8), 8),
    ],
)
def test_the_grid_is_the_image_over_the_patch(stem: Any, patch: int) -> None:
    config = replace(TINY, stem=stem)
    assert stem.patch == patch
    assert config.grid == (32 // patch, 48 // patch)


def test_widths_follow_from_heads_and_ratio() -> None:
    assert (TINY.attention_width, TINY.mlp_width) == (8, 32)
    assert replace(TINY, heads=3, head_width=5).attention_width == 15
    assert replace(TINY, mlp_ratio=2.7).mlp_width == 21


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (TINY, 1),
        (replace(TINY, distillation_token=True), 2),
        (replace(READ, distillation_token=True), 2),
        (replace(TINY, class_token_at=None, class_position=False), 0),
    ],
)
def test_class_and_distillation_tokens_are_counted_together(config: ViTConfig, count: int) -> None:
    assert config.class_tokens == count


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        TINY.width = 4  # type: ignore[misc]
