"""A folded model answers as the model does."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from alltokens.models.config import LayerScale, Scaled
from alltokens.models.fold import fold
from alltokens.models.norms import TokenNorm
from alltokens.models.vit import run_branches_one_by_one
from alltokens.models.zoo import find

from ..kinds import KINDS, TINY, answers, images_for, lively


def differences(model, folded) -> list[float]:
    images = images_for(model.config).to(next(model.parameters()).dtype)
    with torch.no_grad():
        return [
            float((a - b).abs().max()) for a, b in zip(answers(model, images), answers(folded, images), strict=True)
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_answers_the_same_folded(kind):
    model = lively(KINDS[kind]).double().eval()
    assert max(differences(model, fold(model))) < 1e-11


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(find("lvvit_s"), depth=2, image_size=(64, 64)), id="lvvit_s"),
        pytest.param(replace(find("cait_xxs24"), depth=2, class_token_at=2, image_size=(64, 64)), id="cait_xxs24"),
        pytest.param(replace(find("vit_s_18x2"), depth=2, image_size=(64, 64), residual=LayerScale()), id="vit_s_18x2"),
    ],
)
def test_published_models_answer_the_same_folded(config):
    model = lively(config).double().eval().requires_grad_(False)
    scale = max(float(x.abs().max()) for x in answers(model, images_for(config).double()))
    assert max(differences(model, fold(model))) < 1e-12 * scale


def test_parallel_divided_branches_answer_the_same_folded_and_one_by_one():
    model = lively(replace(TINY, branches=3, residual=Scaled(divide_by=3.0))).double().eval()
    folded = fold(model)
    run_branches_one_by_one(folded)
    assert max(differences(model, folded)) < 1e-11


def test_nothing_that_folds_is_left():
    folded = fold(lively(replace(KINDS["lvvit"], residual=LayerScale())))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    for block in folded.blocks:
        for branches in (block.attention, block.mlp):
            assert branches.gain.weight is None
            assert isinstance(branches.norm, TokenNorm)
            assert branches.norm.weight is None


def test_the_model_itself_is_left_alone():
    model = lively(KINDS["lvvit"]).train()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    folded = fold(model)
    assert model.training
    assert not folded.training
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_folding_twice_changes_nothing():
    model = lively(KINDS["cait"]).double()
    assert max(differences(fold(model), fold(fold(model)))) < 1e-11
