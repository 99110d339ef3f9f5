"""First values: nothing is forgotten, and each residual rule starts by its formula."""

from dataclasses import replace
from math import sqrt

import pytest
import torch
from torch import Tensor, nn

from alltokens.models.block import Gain
from alltokens.models.config import (
    ClassAttention,
    ConvStem,
    Fixup,
    HMLPStem,
    LayerScale,
    LeViTStem,
    LinearStem,
    LocalStem,
    Plain,
    Residual,
    ScalarGain,
    Scaled,
    TFixup,
    ViTConfig,
)
from alltokens.models.initialize import initialize
from alltokens.models.vit import VisionTransformer

TINY = ViTConfig(width=16, depth=2, heads=2, image_size=(32, 48), classes=5, token_head=True, distillation_token=True)
# Wide enough for the spread of one matrix to be within a few percent of its formula.
WIDE = replace(TINY, width=64, depth=3, heads=4)
READ = replace(TINY, class_token_at=2, class_position=False, class_attention=ClassAttention(residual=Plain()))
LOCAL_STEM = LocalStem(width=16, depth=1, heads=2)

RESIDUALS = [
    Plain(),
    Scaled(),
    LayerScale(),
    LayerScale(initial=0.1, draw="uniform"),
    LayerScale(initial=0.1, learned=False),
    ScalarGain(),
    Fixup(),
    TFixup(),
]
STEMS = [
    LinearStem(),
    LinearStem(norm="batch", activation="gelu"),
    ConvStem(channels=4),
    ConvStem(channels=4, norm="layer"),
    HMLPStem(),
    HMLPStem(norm="layer"),
    LeViTStem(),
    LOCAL_STEM,
]
KINDS = {
    **{f"{rule}": replace(TINY, residual=rule) for rule in RESIDUALS},
    **{f"{stem}": replace(TINY, stem=stem) for stem in STEMS},
    "class attention": replace(READ, residual=LayerScale(), attention="talking_heads", branches=2),
    "relative": replace(TINY, positions="relative", branches=2),
    "no qkv bias": replace(TINY, qkv_bias=False),
}


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def weights_of(config: ViTConfig, seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return tensors(VisionTransformer(config))


@pytest.mark.parametrize("kind", KINDS)
def test_initialising_again_leaves_nothing_as_it_was(kind: str) -> None:
    model = VisionTransformer(KINDS[kind])
    with torch.no_grad():
        for tensor in tensors(model).values():
            tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
    initialize(model, KINDS[kind])
    for name, tensor in tensors(model).items():
        assert tensor.isfinite().all(), name
        assert tensor.is_floating_point() or (tensor >= 0).all(), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_builds_on_the_meta_device_and_starts_off_it(kind: str) -> None:
    with torch.device("meta"):
        model = VisionTransformer(KINDS[kind])
    assert all(tensor.is_meta for tensor in tensors(model).values())
    model, built = model.to_empty(device="cpu"), VisionTransformer(KINDS[kind])
    for each in (model, built):
        torch.manual_seed(0)
        initialize(each, KINDS[kind])
    for name, tensor in tensors(built).items():
        assert torch.equal(tensors(model)[name], tensor), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(kind: str) -> None:
    first, again, other = (weights_of(KINDS[kind], seed) for seed in (1, 1, 2))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["blocks.0.mlp.input.weight"], other["blocks.0.mlp.input.weight"])


def test_linear_layers_tokens_and_positions_are_truncated_normal_and_biases_zero() -> None:
    state = weights_of(replace(WIDE, attention="talking_heads", image_size=(256, 256)), seed=0)
    small = ["head.weight", "positions.table", "blocks.0.attention.input.weight", "blocks.2.mlp.output.weight"]
    for name in small:
        assert state[name].std().item() == pytest.approx(0.02, rel=0.15), name
        assert state[name].mean().abs().item() < 0.005, name
    for name in ("class_tokens", "blocks.0.attention.operation.before", "blocks.0.attention.operation.after"):
        assert 0.0 < state[name].abs().max() < 0.1, name
    zero = [name for name in state if name.endswith("bias") and not name.startswith("stem")]
    assert len(zero) > 20
    assert all(not state[name].any() for name in zero)
    scales = [name for name in state if name.endswith("norm.weight")]
    assert all((state[name] == 1).all() for name in scales)


def test_stems_keep_torchs_own_start() -> None:
    state = weights_of(replace(TINY, stem=ConvStem(channels=8)), seed=0)
    for name, fan_in in (("stem.0.weight", 3 * 49), ("stem.3.weight", 8 * 9), ("stem.9.weight", 8 * 64)):
        assert state[name].abs().max() <= 1 / sqrt(fan_in)
        assert state[name].std().item() == pytest.approx(1 / sqrt(3 * fan_in), rel=0.1)
    assert (state["stem.1.running_var"] == 1).all()
    assert not state["stem.1.running_mean"].any()


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (LayerScale(initial=1e-5), 1e-5),
        (LayerScale(initial=0.0), 0.0),
        (LayerScale(initial=0.3, learned=False), 0.3),
        (ScalarGain(), 0.0),
        (ScalarGain(initial=0.1), 0.1),
        (Fixup(), 1.0),
        (TFixup(), 1.0),
    ],
)
def test_gains_start_at_the_value_of_their_rule(rule: Residual, value: float) -> None:
    model = VisionTransformer(replace(TINY, residual=rule))
    gains = [module.weight for module in model.modules() if isinstance(module, Gain)]
    assert [len(gain) for gain in gains] == [16 if isinstance(rule, LayerScale) else 1] * 4
    assert all((gain == value).all() for gain in gains)
    assert all(gain.requires_grad == getattr(rule, "learned", True) for gain in gains)


def test_uniform_layer_scale_fills_the_range_from_zero_to_twice_its_mean() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(replace(WIDE, residual=LayerScale(initial=0.1, draw="uniform")))
    gains = torch.cat([module.weight for module in model.modules() if isinstance(module, Gain)])
    assert gains.min() >= 0.0
    assert gains.max() <= 0.2
    assert gains.mean().item() == pytest.approx(0.1, rel=0.1)
    assert gains.std().item() == pytest.approx(0.2 / sqrt(12), rel=0.1)


@pytest.mark.parametrize("rule", [ScalarGain(), LayerScale(initial=0.0), Fixup()])
def test_a_rule_that_starts_its_branches_at_zero_starts_as_the_identity(rule: Residual) -> None:
    model = VisionTransformer(replace(TINY, residual=rule))
    x = torch.randn(2, 7, 16)
    for block in model.blocks:
        assert torch.equal(block(x), x)


def test_fixup_scales_the_first_projection_by_the_square_root_of_the_branches() -> None:
    state = weights_of(replace(WIDE, residual=Fixup()), seed=0)
    for block in range(3):
        for part in ("attention", "mlp"):
            here = f"blocks.{block}.{part}"
            # Three blocks have six residual branches; He's normal has variance 2 / fan_in.
            assert state[f"{here}.input.weight"].std().item() == pytest.approx(sqrt(2 / 64) / sqrt(6), rel=0.05)
            assert not state[f"{here}.output.weight"].any()
            assert not state[f"{here}.shifts"].any()
        assert state[f"blocks.{block}.mlp.operation.shift"].item() == 0.0
    assert not any(state[f"{head}.weight"].any() for head in ("head", "token_head", "distillation_head"))


def test_fixup_leaves_the_blocks_of_a_local_stem_as_they_are() -> None:
    state = weights_of(replace(TINY, residual=Fixup(), stem=LOCAL_STEM), seed=0)
    assert state["stem.blocks.0.mlp.output.weight"].std().item() == pytest.approx(0.02, rel=0.15)
    assert state["stem.blocks.0.mlp.input.weight"].std().item() == pytest.approx(0.02, rel=0.15)


def test_fixup_leaves_class_attention_of_another_rule_as_it_is() -> None:
    state = weights_of(replace(READ, residual=Fixup()), seed=0)
    assert state["class_blocks.0.mlp.output.weight"].std().item() == pytest.approx(0.02, rel=0.15)
    assert state["class_blocks.0.attention.output.weight"].std().item() == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize("branches", [1, 2])
def test_tfixup_is_xavier_with_values_outputs_and_mlps_scaled_by_depth(branches: int) -> None:
    config = replace(WIDE, residual=TFixup(), branches=branches, head_width=8)
    state = weights_of(config, seed=0)
    scale = 0.67 * 3**-0.25
    inner, hidden = config.attention_width, config.mlp_width
    for block in range(3):
        attention, mlp = (f"blocks.{block}.{part}" for part in ("attention", "mlp"))
        square = sqrt(2 / (64 + inner))
        parts = state[f"{attention}.input.weight"].chunk(3)
        for part, factor in zip(parts, (1.0, 1.0, scale), strict=True):
            assert part.std().item() == pytest.approx(factor * square, rel=0.1)
        assert state[f"{attention}.output.weight"].std().item() == pytest.approx(scale * square, rel=0.1)
        oblong = sqrt(2 / (64 + hidden))
        for name in (f"{mlp}.input.weight", f"{mlp}.output.weight"):
            assert state[name].std().item() == pytest.approx(scale * oblong, rel=0.1)
    assert state["head.weight"].std().item() == pytest.approx(0.02, rel=0.15)
