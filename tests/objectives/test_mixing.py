"""Which mix the seeds of a batch decide, for each kind, and what a config refuses."""

from typing import Any

import pytest
import torch

from alltokens.errors import UserError
from alltokens.mix.pixel_mix import PixelMix
from alltokens.mix.token_mix import TokenMix
from alltokens.objectives.mixing import BatchMix, MixConfig, draw_mix

from .batches import a_model

SEEDS = torch.arange(0, 8000)
BOTH = MixConfig(kind="cutmix_or_mixup", mixup_alpha=0.8)
AT_ONCE = MixConfig(kind="token_and_mixup", mixup_alpha=0.8)


def drawn(
    config: MixConfig, kind: str = "rectangle", token_targets: bool = True, seeds: torch.Tensor = SEEDS
) -> BatchMix:
    return draw_mix(config, seeds, a_model(kind), token_targets)


def same(found: Any, expected: TokenMix | PixelMix) -> bool:
    parts = [(getattr(mix, name) for name in ("swapped", "partner", "weight")) for mix in (found, expected)]
    equal = (a is b or torch.equal(a, b) for a, b in zip(*parts, strict=True))
    return type(found) is type(expected) and all(equal)


def test_our_models_mix_tokens_and_those_of_timms_pixels_of_whole_tokens():
    ours, timms = drawn(MixConfig(alpha=0.7)), drawn(MixConfig(alpha=0.7), "timm/test_vit")
    assert same(ours.boxes, TokenMix.of_pairs(SEEDS, (4, 6), 0.7))
    assert same(timms.boxes, PixelMix.cutmix_of_pairs(SEEDS, (4, 6), 0.7))
    assert ours.blend is timms.blend is None


@pytest.mark.parametrize(("token_targets", "grid"), [(True, (4, 6)), (False, (32, 48))])
def test_boxes_of_pixels_keep_to_whole_tokens_where_these_have_targets(token_targets, grid):
    mix = drawn(MixConfig(kind="cutmix"), token_targets=token_targets, seeds=SEEDS[:20])
    assert same(mix.boxes, PixelMix.cutmix_of_pairs(SEEDS[:20], grid))


def test_mixup_has_no_boxes():
    mix = drawn(MixConfig(kind="mixup", alpha=0.8))
    assert mix.boxes is None
    assert same(mix.blend, PixelMix.mixup_of_pairs(SEEDS, 0.8))


def test_nothing_is_drawn_where_nothing_is_mixed_and_odd_batches_will_do():
    assert drawn(MixConfig(kind="none"), seeds=SEEDS[:3]) == BatchMix()


def test_each_pair_has_an_even_chance_of_cutmix_and_mixup():
    mix = drawn(BOTH)
    cutmix, mixup = PixelMix.cutmix_of_pairs(SEEDS, (4, 6)), PixelMix.mixup_of_pairs(SEEDS, 0.8)
    blended = mix.blend.weight < 1
    assert abs(blended.float().mean() - 0.5) < 0.04
    assert mix.blend.weight[blended].equal(mixup.weight[blended])
    assert not mix.boxes.swapped[blended].any()
    assert mix.boxes.swapped[~blended].equal(cutmix.swapped[~blended])
    assert blended[::2].equal(blended[1::2])


@pytest.mark.parametrize("config", [MixConfig(probability=0.3), MixConfig(kind="mixup", probability=0.3)])
def test_as_many_pairs_are_mixed_as_the_probability_says(config):
    all_of_them = drawn(MixConfig(kind=config.kind))
    some, whole = ((mix.boxes or mix.blend) for mix in (drawn(config), all_of_them))
    mixed = some.weight < 1
    share = mixed.float().mean() / (whole.weight < 1).float().mean()
    assert abs(share - 0.3) < 0.04
    assert some.weight[mixed].equal(whole.weight[mixed])


def test_whether_a_pair_is_mixed_does_not_depend_on_its_box():
    mixed = drawn(MixConfig(kind="mixup", probability=0.5)).blend.weight < 1
    weight = PixelMix.mixup_of_pairs(SEEDS).weight
    assert abs(weight[mixed].mean() - weight[~mixed].mean()) < 0.04


def test_a_pair_may_have_a_box_of_tokens_and_a_blend_that_do_not_depend_on_each_other():
    mix = drawn(AT_ONCE)
    assert same(mix.boxes, TokenMix.of_pairs(SEEDS, (4, 6)))
    assert mix.blend.weight.mean() == pytest.approx(0.5, abs=0.04)
    correlation = torch.corrcoef(torch.stack((mix.boxes.weight[::2], mix.blend.weight[::2])))[0, 1]
    assert abs(correlation) < 0.06
    assert same(drawn(AT_ONCE, "timm/test_vit").boxes, PixelMix.cutmix_of_pairs(SEEDS, (4, 6)))


@pytest.mark.parametrize("config", [MixConfig(probability=0.5), MixConfig(kind="mixup"), BOTH, AT_ONCE])
def test_a_batch_split_into_whole_pairs_has_the_same_mix(config):
    whole = drawn(config, seeds=SEEDS[:30])
    split = [drawn(config, seeds=part) for part in SEEDS[:30].split(10)]
    for name in ("boxes", "blend"):
        expected = getattr(whole, name)
        if expected is not None:
            assert torch.cat([getattr(mix, name).weight for mix in split]).equal(expected.weight)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"alpha": 0.0}, "alpha must be a finite number above 0; got alpha=0.0"),
        (
            {"probability": 0.0},
            "probability must be above 0 and at most 1; got probability=0.0, use kind=none for no mix",
        ),
        (
            {"kind": "none", "alpha": 0.8},
            "alpha and probability have no effect with kind=none; got alpha=0.8, probability=1.0, leave both out",
        ),
        (
            {"kind": "none", "probability": 0.5},
            "alpha and probability have no effect with kind=none; got alpha=1.0, probability=0.5, leave both out",
        ),
        (
            {"mixup_alpha": 0.8},
            "mixup_alpha goes with kind=cutmix_or_mixup and kind=token_and_mixup, and with no other; "
            "got kind=token, mixup_alpha=0.8",
        ),
        (
            {"kind": "cutmix_or_mixup"},
            "mixup_alpha goes with kind=cutmix_or_mixup and kind=token_and_mixup, and with no other; "
            "got kind=cutmix_or_mixup, mixup_alpha=None",
        ),
        (
            {"kind": "cutmix_or_mixup", "mixup_alpha": 0.0},
            "mixup_alpha must be a finite number above 0; got mixup_alpha=0.0",
        ),
    ],
)
def test_a_config_says_what_is_wrong_with_it(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        MixConfig(**fields)
    assert str(error.value) == sentence
