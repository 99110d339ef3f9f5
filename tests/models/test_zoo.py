"""The zoo's names, and its parameter counts against timm's models and the released LV-ViT."""

import pytest
import timm
import torch
from timm.models.cait import Cait

from alltokens.errors import UserError
from alltokens.models.counts import count
from alltokens.models.zoo import CROP_RATIOS, MODELS, crop_ratio, find, list_models

TIMM_NAMES = {
    "vit_ti": "vit_tiny_patch16_224",
    "vit_s": "vit_small_patch16_224",
    "vit_b": "vit_base_patch16_224",
    "vit_l": "vit_large_patch16_224",
    "vit_b_384": "vit_base_patch16_384",
    "vit_l_384": "vit_large_patch16_384",
    "deit_ti": "deit_tiny_patch16_224",
    "deit_s": "deit_small_patch16_224",
    "deit_b": "deit_base_patch16_224",
    "deit_b_384": "deit_base_patch16_384",
    "deit_ti_distilled": "deit_tiny_distilled_patch16_224",
    "deit_s_distilled": "deit_small_distilled_patch16_224",
    "deit_b_distilled": "deit_base_distilled_patch16_224",
    "deit_b_distilled_384": "deit_base_distilled_patch16_384",
    "cait_xxs24": "cait_xxs24_224",
    "cait_xxs24_384": "cait_xxs24_384",
    "cait_xxs36": "cait_xxs36_224",
    "cait_xs24_384": "cait_xs24_384",
    "cait_s24": "cait_s24_224",
    "cait_s36_384": "cait_s36_384",
    "cait_m36_384": "cait_m36_384",
    "cait_m48_448": "cait_m48_448",
    "vit_s_18x2_ls": "vit_small_patch16_18x2_224",
    "vit_s_36x1_ls": "vit_small_patch16_36x1_224",
    "vit_b_18x2_ls": "vit_base_patch16_18x2_224",
    "deit3_s": "deit3_small_patch16_224",
    "deit3_b_384": "deit3_base_patch16_384",
    "deit3_l": "deit3_large_patch16_224",
}

CAIT_SIZES = ["xxs24", "xxs36", "xs24", "xs36", "s24", "s36", "s48", "m24", "m36", "m48"]


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def timm_parameters(name: str) -> int:
    with torch.device("meta"):
        return parameters(timm.create_model(name))


@pytest.mark.parametrize(("name", "timm_name"), TIMM_NAMES.items())
def test_a_model_has_exactly_the_parameters_of_timms(name: str, timm_name: str) -> None:
    assert count(find(name)).parameters == timm_parameters(timm_name)


@pytest.mark.parametrize("size", CAIT_SIZES)
def test_a_cait_has_exactly_the_parameters_of_timms_class(size: str) -> None:
    config = find(f"cait_{size}")
    with torch.device("meta"):
        theirs = Cait(img_size=224, embed_dim=config.width, depth=config.depth, num_heads=config.heads)
    assert count(config).parameters == parameters(theirs)


@pytest.mark.parametrize(
    ("name", "released"),
    [("lvvit_t", 8_534_720), ("lvvit_s", 26_151_824), ("lvvit_m", 55_830_544), ("lvvit_l", 150_021_968)],
)
def test_an_lvvit_has_exactly_the_parameters_of_the_released_one(name: str, released: int) -> None:
    assert count(find(name)).parameters == released


def test_parallel_models_cost_what_their_sequential_twins_cost() -> None:
    assert count(find("vit_s_15x4")) == count(find("vit_s_60x1"))
    assert count(find("vit_b_18x2_ls")) == count(find("vit_b_36x1_ls"))


def test_an_unknown_name_is_answered_with_the_closest_ones() -> None:
    with pytest.raises(UserError) as error:
        find("lvit_s")
    assert str(error.value).startswith("unknown model 'lvit_s'; did you mean lvvit_s, ")
    with pytest.raises(UserError) as error:
        crop_ratio("qqqq")
    assert str(error.value) == "unknown model 'qqqq'"


def test_names_are_listed_sorted_and_by_pattern() -> None:
    assert list_models() == sorted(MODELS)
    assert list_models("lvvit_?") == ["lvvit_l", "lvvit_m", "lvvit_s", "lvvit_t"]
    assert list_models("nothing*") == []


def test_names_are_lower_case_words_joined_by_underscores() -> None:
    assert all(name.replace("_", "").isalnum() and name == name.lower() for name in MODELS)


def test_a_name_that_ends_in_an_image_size_has_it() -> None:
    for name in list_models("*_[2345][0-9][0-9]"):
        size = int(name[-3:])
        assert find(name).image_size == (size, size)


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("vit_b", 0.95),
        ("deit_b", 0.9),
        ("deit_b_384", 1.0),
        ("deit3_s_384", 1.0),
        ("lvvit_s_384", 0.9),
        ("lvvit_m", 1.0),
        ("cait_s36_384", 1.0),
        ("cait_t8_256", 0.875),
        ("cait_b_class_not_in_keys", 0.875),
        ("tlv1_t3_conv_stem", 0.9),
        ("t2t_vit_t_14", 0.9),
    ],
)
def test_the_crop_follows_the_family(name: str, ratio: float) -> None:
    assert crop_ratio(name) == ratio


def test_every_model_has_a_crop_and_no_crop_is_left_over() -> None:
    assert all(0.0 < crop_ratio(name) <= 1.0 for name in MODELS)
    assert all(any(name.startswith(prefix) for name in MODELS) for prefix in CROP_RATIOS)


def test_drop_rates_of_cait_s_models_follow_its_formula() -> None:
    for depth in (24, 36, 48):
        assert find(f"cait_s{depth}").drop_path == pytest.approx(0.1 * (depth / 12 - 1))
