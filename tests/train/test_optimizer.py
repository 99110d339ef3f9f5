"""Which parameters decay and how fast each learns, against timm; clipping against its definition."""

import math
from dataclasses import replace

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from alltokens.errors import UserError
from alltokens.models.timm_model import TimmClassifier, TimmConfig
from alltokens.models.vit import VisionTransformer
from alltokens.plain import to_plain
from alltokens.train.optimizer import (
    FiniteCheck,
    OptimizerConfig,
    build_optimizer,
    clip_gradients,
    hold_back,
    parameter_groups,
    peak_learning_rate,
    set_learning_rate,
)

from ..kinds import KINDS, TINY

PLAIN = OptimizerConfig(reference_batch=None)


class Objective(nn.Module):
    """A model and what an objective may train beside it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.extra = nn.Linear(2, 3)


def settings(groups: list[dict], names: dict[nn.Parameter, str]) -> dict[str, tuple[float, float]]:
    """Weight decay and factor on the learning rate by name."""
    found = {}
    for group in groups:
        for parameter in group["params"]:
            assert names[parameter] not in found
            found[names[parameter]] = group["weight_decay"], group.get("lr_scale", 1.0)
    return found


def names_in(module: nn.Module) -> dict[nn.Parameter, str]:
    return {parameter: name for name, parameter in module.named_parameters()}


def ours_and_timms(objective: Objective, model: nn.Module, layer_decay: float | None) -> tuple[dict, dict]:
    """What we say of the objective's parameters, and what timm says of the model's, under the objective's names."""
    config, exempt = replace(PLAIN, layer_decay=layer_decay), getattr(model, "no_weight_decay", set)()
    if layer_decay is None:
        groups = param_groups_weight_decay(model, 0.05, no_weight_decay_list=exempt)
    else:
        groups = param_groups_layer_decay(model, 0.05, no_weight_decay_list=exempt, layer_decay=layer_decay)
    timms = settings(groups, names_in(model))
    return settings(parameter_groups(objective, config), names_in(objective)), timms


@pytest.mark.parametrize("layer_decay", [None, 0.65])
def test_lvvit_t_is_grouped_as_timm_groups_it(layer_decay):
    with torch.device("meta"):
        model = timm.create_model("lvvit_t")
        objective = Objective(VisionTransformer(model.model.config))
    ours, timms = ours_and_timms(objective, model, layer_decay)
    assert {name for name in ours if not name.startswith("extra.")} == set(timms)
    assert {name: ours[name] for name in timms} == timms
    assert (ours["extra.weight"], ours["extra.bias"]) == ((0.05, 1.0), (0.0, 1.0))


@pytest.mark.parametrize("layer_decay", [None, 0.65])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_ours_is_grouped_alike_inside_timm_and_inside_an_objective(kind, layer_decay):
    with torch.device("meta"):
        model = timm.create_model("alltokens_vit", config=to_plain(KINDS[kind]))
        objective = Objective(VisionTransformer(KINDS[kind]))
    ours, timms = ours_and_timms(objective, model, layer_decay)
    assert {name: pair for name, pair in ours.items() if not name.startswith("extra.")} == timms


@pytest.mark.parametrize("layer_decay", [None, 0.65])
@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_timms_own_models_are_grouped_as_timm_groups_them(name, layer_decay):
    classifier = TimmClassifier(TimmConfig(name=name, classes=5, image_size=(32, 32), token_head=True))
    ours, timms = ours_and_timms(Objective(classifier), classifier.model, layer_decay)
    assert {key: ours[f"model.model.{key}"] for key in timms} == timms
    assert ours["model.token_head.weight"] == (0.05, 1.0)


def test_no_bias_norm_gain_token_or_position_decays():
    for kind in KINDS:
        objective = Objective(VisionTransformer(KINDS[kind]))
        found = settings(parameter_groups(objective, PLAIN), names_in(objective))
        for name, (decay, _) in found.items():
            last = name.rpartition(".")[2]
            still = last in ("class_tokens", "table", "positions") or dict(objective.named_parameters())[name].ndim < 2
            assert decay == (0.0 if still else 0.05), name
            assert still or last in ("weight", "before", "after"), name


def test_frozen_parameters_are_left_out():
    objective = Objective(VisionTransformer(KINDS["frozen gains"]))
    for parameter in objective.model.stem.parameters():
        parameter.requires_grad_(False)
    optimizer = build_optimizer(objective, PLAIN, 8)
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {parameter for parameter in objective.parameters() if parameter.requires_grad}


def test_a_model_that_is_frozen_whole_is_refused():
    with pytest.raises(UserError) as raised:
        build_optimizer(nn.Linear(2, 2).requires_grad_(False), PLAIN, 8)
    assert str(raised.value) == (
        "nothing is left to train: every parameter is frozen; leave one part of the model trainable"
    )


def test_layer_decay_of_a_model_without_layers_is_refused():
    with pytest.raises(UserError) as raised:
        build_optimizer(nn.Linear(2, 2), replace(PLAIN, layer_decay=0.5), 8)
    assert str(raised.value) == (
        "layer_decay needs a model that says what its layers are, and this one does not; leave it out"
    )


@pytest.mark.parametrize(
    ("rate", "reference", "batch", "peak"),
    [(1e-3, 640, 1024, 1.6e-3), (5e-4, 512, 1024, 1e-3), (1e-3, 640, 64, 1e-4), (3e-4, None, 64, 3e-4)],
)
def test_the_learning_rate_follows_the_effective_batch(rate, reference, batch, peak):
    config = OptimizerConfig(learning_rate=rate, reference_batch=reference)
    assert peak_learning_rate(config, batch) == pytest.approx(peak, rel=1e-12)
    optimizer = build_optimizer(nn.Linear(2, 2), config, batch)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([peak, peak], rel=1e-12)


def test_a_schedule_sets_the_rate_of_each_layer():
    objective = Objective(VisionTransformer(TINY))
    optimizer = build_optimizer(objective, replace(PLAIN, layer_decay=0.5), 8)
    set_learning_rate(optimizer, 0.8)
    names = names_in(objective)
    rates = {names[parameter]: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    assert rates["model.stem.0.weight"] == pytest.approx(0.1)
    assert rates["model.blocks.1.mlp.input.weight"] == pytest.approx(0.4)
    assert rates["model.head.weight"] == rates["extra.weight"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("config", "timms"),
    [
        (PLAIN, {"opt": "adamw"}),
        (replace(PLAIN, betas=(0.9, 0.98)), {"opt": "adamw", "betas": (0.9, 0.98)}),
        (replace(PLAIN, kind="sgd"), {"opt": "sgd"}),
        (replace(PLAIN, kind="sgd", momentum=0.5), {"opt": "sgd", "momentum": 0.5}),
        (replace(PLAIN, kind="lamb"), {"opt": "lamb", "max_grad_norm": None}),
    ],
)
def test_steps_are_those_of_timms_optimizer_of_that_name(config, timms):
    torch.manual_seed(0)
    ours, theirs = VisionTransformer(TINY), VisionTransformer(TINY)
    theirs.load_state_dict(ours.state_dict())
    contract = timm.create_model("alltokens_vit", config=to_plain(TINY))
    contract.model = theirs
    optimizers = build_optimizer(ours, config, 8), create_optimizer_v2(contract, lr=1e-3, weight_decay=0.05, **timms)
    images = torch.randn(2, 3, 32, 48)
    for _ in range(3):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(images).image_logits.square().sum().backward()
            optimizer.step()
    for mine, timms_own in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, timms_own, rtol=0, atol=1e-6)


@pytest.mark.parametrize("limit", [None, 0.5, 1e6])
def test_gradients_are_shortened_to_the_limit(limit):
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(2))]
    for parameter in parameters[:2]:
        parameter.grad = torch.randn_like(parameter)
    before = [parameter.grad.clone() for parameter in parameters[:2]]
    length = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in before))
    norm = clip_gradients(parameters, limit)
    assert norm.item() == pytest.approx(length, rel=1e-6)
    factor = 1.0 if limit is None else min(1.0, limit / length)
    for parameter, gradient in zip(parameters, before, strict=False):
        torch.testing.assert_close(parameter.grad, gradient * factor, rtol=1e-5, atol=0)
    assert parameters[2].grad is None


def test_finite_values_are_read_as_they_are():
    check = FiniteCheck(3, {"total": torch.tensor(2.5, requires_grad=True), "token": torch.tensor(0.5)})
    assert check.read() == {"total": 2.5, "token": 0.5}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_ends_the_run_with_its_part_and_step(value):
    check = FiniteCheck(41, {"total": torch.tensor(value), "image": torch.tensor(0.5), "token": torch.tensor(value)})
    with pytest.raises(UserError) as raised:
        check.read()
    assert str(raised.value) == (
        f"training diverged in step 41: total is {value}, token is {value}; "
        "lower learning_rate, lengthen the warm-up or set clip"
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0])
@pytest.mark.parametrize(
    ("kind", "fused"), [("adamw", False), ("adamw", True), ("sgd", False), ("sgd", True), ("lamb", None)]
)
def test_what_is_not_finite_reaches_no_weight_and_no_memory(kind, fused, value):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1).requires_grad_(False))
    optimizer = build_optimizer(model, replace(PLAIN, kind=kind), 8)
    for group in optimizer.param_groups:
        group["fused"] = fused  # as on a GPU; torch has these kernels for a CPU too
    before = [parameter.detach().clone() for parameter in model[0].parameters()]
    (model(torch.ones(1, 3)).sum() * value).backward()
    norm = clip_gradients(model.parameters(), 1.0)
    check = FiniteCheck(0, {"gradient": norm})
    hold_back(optimizer, check.broken)
    optimizer.step()
    remembered = [x for state in optimizer.state.values() for x in state.values() if x is not None]
    assert all(x.isfinite().all() for x in [*model.parameters(), *remembered])
    learned = [not torch.equal(now, then) for now, then in zip(model[0].parameters(), before, strict=True)]
    assert all(learned) if math.isfinite(value) else not (fused and any(learned))
    if fused and not math.isfinite(value):
        assert not any(x.any() for x in remembered)


def test_what_is_read_later_is_what_it_was():
    value = torch.tensor(1.0)
    check = FiniteCheck(0, {"total": value})
    value.fill_(math.nan)
    assert check.read() == {"total": 1.0}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be above 0; got learning_rate=0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be above 0; got learning_rate=nan"),
        ({"reference_batch": 0}, "reference_batch must be above 0; got reference_batch=0"),
        ({"clip": -1.0}, "clip must be above 0; got clip=-1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0; got weight_decay=-0.1"),
        ({"betas": (0.9, 1.0)}, "betas must be at least 0 and below 1; got (0.9, 1.0)"),
        ({"kind": "sgd", "momentum": 1.5}, "momentum must be at least 0 and below 1; got 1.5"),
        ({"layer_decay": 1.0}, "layer_decay must be between 0 and 1, or none; got layer_decay=1.0"),
        ({"momentum": 0.9}, "momentum has no effect with kind=adamw; got momentum=0.9"),
        ({"kind": "lamb", "momentum": 0.0}, "momentum has no effect with kind=lamb; got momentum=0.0"),
        ({"kind": "sgd", "betas": (0.9, 0.99)}, "betas has no effect with kind=sgd; got betas=(0.9, 0.99)"),
    ],
)
def test_an_optimizer_that_cannot_be_is_refused(fields, sentence):
    with pytest.raises(UserError) as raised:
        OptimizerConfig(**fields)
    assert str(raised.value) == sentence
