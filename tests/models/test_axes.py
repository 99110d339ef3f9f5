"""Every axis of the config, alone and with others, against loops written from the papers' equations."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

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
    TFixup,
    ViTConfig,
)
from alltokens.models.fold import fold
from alltokens.models.vit import VisionTransformer, drop_path_rates, run_branches_one_by_one

from ..kinds import answers, images_for, lively
from .brute_force import predict

TINY = ViTConfig(
    width=8,
    depth=3,
    heads=2,
    mlp_ratio=2.0,
    stem=LinearStem(patch=4),
    token_head=True,
    image_size=(8, 12),
    channels=2,
    classes=5,
)
LATE = replace(TINY, class_token_at=2, class_position=False)
POOLED = replace(TINY, class_token_at=None, class_position=False)
READ = replace(TINY, class_token_at=3, class_position=False, class_attention=ClassAttention(depth=2))
RELATIVE = replace(TINY, positions="relative")
LAYER_SCALE = replace(TINY, residual=LayerScale(initial=1.0))
TALKING = replace(TINY, attention="talking_heads", heads=4)
LARGE = replace(TINY, image_size=(32, 48), depth=1)
OUTSIDE_KEYS = ClassAttention(depth=2, class_in_keys=False)
LOCAL_STEM = LocalStem(patch=8, subpatch=4, width=6, depth=2, heads=3)

AXES = {
    "plain": TINY,
    "no token head": replace(TINY, token_head=False),
    "depth 1": replace(TINY, depth=1),
    "one row": replace(TINY, image_size=(4, 12)),
    "one channel": replace(TINY, channels=1),
    "head width 3": replace(TINY, head_width=3),
    "head width 5 where heads do not divide the width": replace(TINY, heads=3, head_width=5),
    "one head": replace(TINY, heads=1),
    "mlp ratio 3": replace(TINY, mlp_ratio=3.0),
    "two branches": replace(TINY, branches=2),
    "three branches": replace(TINY, branches=3),
    "sinusoidal": replace(TINY, positions="sinusoidal"),
    "sinusoidal, odd width": replace(TINY, positions="sinusoidal", width=9, heads=3),
    "sinusoidal without class position": replace(TINY, positions="sinusoidal", class_position=False),
    "learned without class position": replace(TINY, class_position=False),
    "relative": RELATIVE,
    "relative without class position": replace(RELATIVE, class_position=False),
    "no positions": replace(TINY, positions="none", class_position=False),
    "class token at 2": LATE,
    "average pool": POOLED,
    "class attention": READ,
    "one class-attention block": replace(READ, class_attention=ClassAttention(depth=1)),
    "class outside its keys": replace(READ, class_attention=OUTSIDE_KEYS),
    "class residual of its own": replace(READ, class_attention=ClassAttention(residual=LayerScale(initial=1.0))),
    "distillation token": replace(TINY, distillation_token=True),
    "talking heads": TALKING,
    "no qkv bias": replace(TINY, qkv_bias=False),
    "divided by 2": replace(TINY, residual=Scaled(divide_by=2.0)),
    "divided by 3": replace(TINY, residual=Scaled(divide_by=3.0)),
    "layer scale": LAYER_SCALE,
    "frozen layer scale": replace(TINY, residual=LayerScale(initial=1.0, learned=False)),
    "scalar gain": replace(TINY, residual=ScalarGain(initial=1.0)),
    "fixup": replace(TINY, residual=Fixup()),
    "tfixup": replace(TINY, residual=TFixup()),
    "layer norm with a large eps": replace(TINY, norm=LayerNorm(eps=0.1)),
    "group norm 1": replace(TINY, norm=GroupNorm(groups=1)),
    "group norm 4 with a large eps": replace(TINY, norm=GroupNorm(groups=4, eps=0.1)),
    "no norm": replace(TINY, norm=NoNorm()),
    "post norm": replace(TINY, norm_position="post"),
    "linear stem, batch norm": replace(TINY, stem=LinearStem(patch=4, norm="batch")),
    "linear stem, gelu": replace(TINY, stem=LinearStem(patch=4, activation="gelu")),
    "linear stem, layer norm, relu": replace(TINY, stem=LinearStem(patch=4, norm="layer", activation="relu")),
    "conv stem": replace(LARGE, stem=ConvStem(channels=4)),
    "conv stem, layer norm, gelu": replace(
        TINY, stem=ConvStem(channels=4, kernels=(3, 2, 2), strides=(1, 2, 2), norm="layer", activation="gelu")
    ),
    "conv stem, overlapping end": replace(TINY, stem=ConvStem(channels=4, kernels=(3, 5), strides=(2, 2))),
    "conv stem, nothing between": replace(
        TINY, stem=ConvStem(channels=4, kernels=(7, 8), strides=(2, 2), norm="none", activation="none")
    ),
    "hmlp stem": replace(LARGE, stem=HMLPStem()),
    "hmlp stem, layer norm, relu": replace(LARGE, stem=HMLPStem(norm="layer", activation="relu")),
    "hmlp stem, nothing between": replace(LARGE, stem=HMLPStem(norm="none", activation="none")),
    "levit stem": replace(LARGE, stem=LeViTStem()),
    "levit stem, layer norm": replace(LARGE, width=16, stem=LeViTStem(norm="layer")),
    "levit stem, no norm": replace(LARGE, stem=LeViTStem(norm="none")),
    "local stem": replace(TINY, image_size=(8, 16), stem=LOCAL_STEM),
}

COMBINATIONS = {
    "LV-ViT": replace(LARGE, stem=ConvStem(channels=4), residual=Scaled(), qkv_bias=False, norm=LayerNorm(eps=1e-5)),
    "CaiT": replace(READ, attention="talking_heads", residual=LayerScale(initial=1.0)),
    "BeiT": replace(RELATIVE, residual=LayerScale(initial=1.0), class_token_at=None, class_position=False),
    "parallel ViT with hMLP": replace(LARGE, stem=HMLPStem(), branches=2, residual=LayerScale(initial=1.0)),
    "branches, layer scale, relative, late class token": replace(
        RELATIVE, branches=2, residual=LayerScale(initial=1.0), class_token_at=1
    ),
    "branches, relative, late class token without position": replace(LATE, positions="relative", branches=3),
    "branches, relative, distillation token": replace(RELATIVE, branches=2, distillation_token=True),
    "branches, relative, class attention": replace(READ, positions="relative", branches=2),
    "branches, talking heads": replace(TALKING, branches=2),
    "branches, talking heads, layer scale, class attention": replace(
        READ, branches=2, attention="talking_heads", residual=LayerScale(initial=1.0)
    ),
    "branches, talking heads, head width, no qkv bias": replace(TALKING, branches=3, head_width=3, qkv_bias=False),
    "branches, group norm": replace(TINY, branches=2, norm=GroupNorm(groups=2)),
    "branches, group norm, scalar gain, no qkv bias": replace(
        TINY, branches=2, norm=GroupNorm(groups=4), residual=ScalarGain(initial=1.0), qkv_bias=False
    ),
    "branches, no norm, divided by 2": replace(TINY, branches=2, norm=NoNorm(), residual=Scaled()),
    "branches, no norm, no qkv bias": replace(TINY, branches=2, norm=NoNorm(), qkv_bias=False),
    "branches, frozen layer scale": replace(TINY, branches=2, residual=LayerScale(initial=1.0, learned=False)),
    "branches, tfixup, head width": replace(TINY, branches=3, residual=TFixup(), head_width=3),
    "branches, average pool": replace(POOLED, branches=2),
    "branches, class residual of its own": replace(
        READ,
        branches=2,
        residual=ScalarGain(initial=1.0),
        class_attention=ClassAttention(depth=1, residual=Scaled(divide_by=3.0)),
    ),
    "branches, local stem": replace(TINY, image_size=(8, 16), stem=LOCAL_STEM, branches=2, residual=Scaled()),
    "distillation, class attention": replace(READ, distillation_token=True),
    "distillation, class attention, outside the keys": replace(
        READ, distillation_token=True, class_attention=OUTSIDE_KEYS
    ),
    "distillation, late": replace(LATE, distillation_token=True),
    "distillation, late, relative": replace(RELATIVE, class_token_at=1, distillation_token=True),
    "distillation, sinusoidal": replace(TINY, positions="sinusoidal", distillation_token=True),
    "distillation, post norm": replace(TINY, norm_position="post", distillation_token=True),
    "post norm, fixup": replace(TINY, norm_position="post", residual=Fixup()),
    "post norm, layer scale, group norm": replace(LAYER_SCALE, norm_position="post", norm=GroupNorm(groups=2)),
    "post norm, talking heads": replace(TALKING, norm_position="post"),
    "post norm, average pool, sinusoidal": replace(POOLED, norm_position="post", positions="sinusoidal"),
    "fixup, no norm": replace(TINY, residual=Fixup(), norm=NoNorm()),
    "fixup, relative, late class token": replace(RELATIVE, residual=Fixup(), class_token_at=2),
    "fixup, talking heads": replace(TALKING, residual=Fixup()),
    "fixup, class attention of another rule": replace(
        READ, residual=Fixup(), class_attention=ClassAttention(depth=1, residual=Plain())
    ),
    "rezero without norm, class attention": replace(READ, residual=ScalarGain(initial=1.0), norm=NoNorm()),
    "group norm, class attention": replace(READ, norm=GroupNorm(groups=2)),
    "class attention, head width, no qkv bias": replace(READ, head_width=3, qkv_bias=False),
    "class attention, sinusoidal": replace(READ, positions="sinusoidal"),
    "class attention, no positions, outside the keys": replace(READ, positions="none", class_attention=OUTSIDE_KEYS),
    "average pool, relative": replace(POOLED, positions="relative"),
    "levit stem, relative, pooled": replace(
        POOLED, stem=LeViTStem(), image_size=(32, 48), positions="relative", depth=1
    ),
}

CONFIGS = AXES | COMBINATIONS
WITH_BRANCHES = [name for name, config in CONFIGS.items() if config.branches > 1]


def precise(config: ViTConfig, seed: int = 0) -> VisionTransformer:
    return lively(config, seed).double().eval()


def expected_answers(config: ViTConfig, state: dict[str, Tensor], images: Tensor) -> list[np.ndarray]:
    logits = predict(config, state, images)
    return [head for head in (logits.image, logits.token, logits.distillation) if head is not None]


def largest_difference(found: list[Tensor], expected: list[np.ndarray] | list[Tensor]) -> float:
    return max(
        float(np.abs(np.asarray(a) - np.asarray(b)).max())
        for a, b in zip((x.detach() for x in found), expected, strict=True)
    )


def assert_answers_as_the_equations_say(config: ViTConfig) -> None:
    model, images = precise(config), images_for(config).double()
    found, expected = answers(model, images), expected_answers(config, model.state_dict(), images)
    assert [tuple(x.shape) for x in found] == [x.shape for x in expected]
    assert largest_difference(found, expected) < 1e-10


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_answers_as_the_equations_say(name: str) -> None:
    assert_answers_as_the_equations_say(CONFIGS[name])


RESIDUALS = [Plain(), Scaled(), LayerScale(initial=1.0), ScalarGain(initial=1.0), Fixup(), TFixup()]
NORMS = [LayerNorm(), GroupNorm(groups=2), NoNorm()]


@st.composite
def valid_configs(draw: st.DrawFn) -> ViTConfig:
    """Any combination of the axes that the config accepts."""
    residual, attention = draw(st.sampled_from(RESIDUALS)), draw(st.sampled_from(["dot_product", "talking_heads"]))
    position_kinds = ["learned", "sinusoidal", "none"] + ["relative"] * (attention == "dot_product")
    positions, at = draw(st.sampled_from(position_kinds)), draw(st.sampled_from([None, 0, 1, 2]))
    norm = draw(st.sampled_from(NORMS))
    post = at != 2 and not isinstance(norm, NoNorm) and draw(st.booleans())
    class_rules = [rule for rule in RESIDUALS if not isinstance(rule, Fixup)]
    class_attention = st.builds(
        ClassAttention, depth=st.integers(1, 2), class_in_keys=st.booleans(), residual=st.sampled_from(class_rules)
    )
    placeable = at in (0, 1) if positions == "relative" else at == 0 and positions != "none"
    return ViTConfig(
        width=draw(st.sampled_from([4, 8])),
        depth=2,
        heads=draw(st.sampled_from([1, 2])),
        head_width=draw(st.sampled_from([None, 3])),
        mlp_ratio=draw(st.sampled_from([1.0, 2.5])),
        branches=1 if post or isinstance(residual, Fixup) else draw(st.integers(1, 3)),
        stem=LinearStem(patch=2),
        positions=positions,
        class_position=placeable and draw(st.booleans()),
        class_token_at=at,
        class_attention=draw(class_attention) if at == 2 else None,
        distillation_token=at is not None and draw(st.booleans()),
        attention=attention,
        qkv_bias=draw(st.booleans()),
        residual=residual,
        norm=norm,
        norm_position="post" if post else "pre",
        token_head=draw(st.booleans()),
        image_size=(2 * draw(st.integers(1, 3)), 2 * draw(st.integers(1, 3))),
        channels=1,
        classes=3,
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(valid_configs())
def test_any_combination_answers_as_the_equations_say(config: ViTConfig) -> None:
    assert_answers_as_the_equations_say(config)


def kind_of(key: str) -> str:
    """A tensor's name without the number of its block."""
    return re.sub(r"\.\d+\.(attention|mlp)", r".*.\1", key)


# The same number added to all of a query's logits leaves its softmax as it is.
WITHOUT_EFFECT = ("before_bias", "num_batches_tracked")
ALL_KINDS = [
    "distillation, class attention",
    "branches, talking heads, layer scale, class attention",
    "branches, relative, late class token without position",
    "fixup",
    "conv stem",
    "hmlp stem",
    "levit stem, layer norm",
    "local stem",
]


@pytest.mark.parametrize("name", ALL_KINDS)
def test_a_disturbed_tensor_of_any_kind_breaks_the_agreement(name: str) -> None:
    config = CONFIGS[name]
    model, images = precise(config), images_for(config, batch=1).double()
    found, state = answers(model, images), model.state_dict()
    generator = torch.Generator().manual_seed(2)
    for key in {kind_of(key): key for key in state if not key.endswith(WITHOUT_EFFECT)}.values():
        noise = torch.randn(state[key].shape, generator=generator).abs().double()
        disturbed = state | {key: state[key] + 0.3 * noise}
        assert largest_difference(found, expected_answers(config, disturbed, images)) > 1e-3, key


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_reach_every_parameter(name: str) -> None:
    model = precise(CONFIGS[name])
    torch.stack(
        [logits.square().sum() for logits in answers(model, images_for(CONFIGS[name]).double())]
    ).sum().backward()
    for key, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, key
        if parameter.requires_grad and not key.endswith(WITHOUT_EFFECT):
            assert parameter.grad.abs().max() > 1e-8, key


@pytest.mark.parametrize("name", WITH_BRANCHES)
def test_branches_agree_whether_wide_or_one_by_one(name: str) -> None:
    model, images = precise(CONFIGS[name]), images_for(CONFIGS[name]).double()
    wide = answers(model, images)
    run_branches_one_by_one(model)
    assert largest_difference(answers(model, images), [x.detach() for x in wide]) < 1e-10


@pytest.mark.parametrize("name", WITH_BRANCHES)
def test_branches_drop_the_same_paths_whether_wide_or_one_by_one(name: str) -> None:
    config = replace(CONFIGS[name], drop_path=0.5, drop_path_rule="constant")
    model, images = precise(config).train(), images_for(config, batch=6).double()
    runs, gradients = [], []
    for one_by_one in (False, True):
        run_branches_one_by_one(model, one_by_one)
        model.zero_grad()
        torch.manual_seed(3)
        runs.append(answers(model, images))
        torch.stack([logits.square().mean() for logits in runs[-1]]).sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert largest_difference(runs[0], [x.detach() for x in runs[1]]) < 1e-10
    assert largest_difference(gradients[0], gradients[1]) < 1e-9
    whole = answers(model.eval(), images)
    assert largest_difference(runs[0], [x.detach() for x in whole]) > 1e-3


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folded_model_answers_the_same(name: str) -> None:
    model, images = precise(CONFIGS[name]), images_for(CONFIGS[name]).double()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    folded = fold(model)
    assert largest_difference(answers(folded, images), [x.detach() for x in answers(model, images)]) < 1e-10
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_drop_path_drops_whole_branches_of_an_image_and_keeps_the_mean() -> None:
    config = replace(POOLED, depth=1, drop_path=0.25, drop_path_rule="constant", norm=NoNorm(), branches=2)
    model = precise(config).train()
    attention = model.blocks[0].attention
    torch.manual_seed(4)
    kept = attention.draw_kept(torch.zeros(4000, 1, 8))
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert kept.mean(0).tolist() == pytest.approx([1.0, 1.0], abs=0.03)
    x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(5)).double()
    torch.manual_seed(6)
    mask = attention.draw_kept(x)
    torch.manual_seed(6)
    found = attention(x)
    each = [attention.one(x, branch, None, None) for branch in range(2)]
    expected = torch.stack(
        [x[image] + sum(mask[image, branch] * each[branch][image] for branch in range(2)) for image in range(4)]
    )
    assert torch.allclose(found, expected, atol=1e-12)
    assert len(mask.unique()) == 2


@pytest.mark.parametrize(
    ("rule", "depth", "rates"),
    [
        ("linear", 5, [0.0, 0.1, 0.2, 0.3, 0.4]),
        ("linear", 1, [0.0]),
        ("constant", 3, [0.4, 0.4, 0.4]),
    ],
)
def test_drop_path_rises_over_the_trunk_or_stays(rule: str, depth: int, rates: list[float]) -> None:
    config = replace(POOLED, depth=depth, drop_path=0.4, drop_path_rule=rule)
    assert drop_path_rates(config) == pytest.approx(rates)
    assert [block.mlp.drop_path for block in VisionTransformer(config).blocks] == pytest.approx(rates)


def test_evaluation_adds_the_weighted_maximum_over_tokens_and_averages_the_distillation_head() -> None:
    config = replace(TINY, distillation_token=True)
    model, images = precise(config), images_for(config).double()
    image, token, distillation = expected_answers(config, model.state_dict(), images)
    scores = model(images).scores(token_weight=0.5)
    expected = (image + distillation) / 2 + 0.5 * token.max(1)
    assert np.abs(scores.detach().numpy() - expected).max() < 1e-10
    assert torch.equal(model(images)._replace(distillation_logits=None).scores(), model(images).image_logits)
