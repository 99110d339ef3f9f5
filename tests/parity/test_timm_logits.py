"""Logits of our models and of timm's with the same weights."""

from dataclasses import replace

import pytest
import torch

from alltokens.models.config import LayerScale
from alltokens.models.vit import run_branches_one_by_one
from alltokens.models.zoo import find

from .sine_rule import sine_images
from .twins import largest_difference, our_twin, timm_twin

TOLERANCES = [pytest.param(torch.float64, 1e-9, id="float64"), pytest.param(torch.float32, 1e-4, id="float32")]

# timm has these with LayerScale, or without a class token.
PARALLEL = replace(find("vit_s_18x2"), residual=LayerScale(initial=1e-5))
AVERAGE = replace(find("vit_ti"), class_token_at=None, class_position=False)

FAST = {
    "vit_tiny_patch16_224": find("vit_ti"),
    "deit_tiny_patch16_224": find("deit_ti"),
    "deit_tiny_distilled_patch16_224": find("deit_ti_distilled"),
    "vit_small_patch16_224": find("vit_s"),
    "deit_small_patch16_224": find("deit_s"),
    "deit_small_distilled_patch16_224": find("deit_s_distilled"),
    "deit3_small_patch16_224": find("deit3_s"),
    "cait_xxs24_224": find("cait_xxs24"),
    "cait_s24_224": find("cait_s24"),
}
SLOW = {
    "cait_xxs36_224": find("cait_xxs36"),
    "cait_xs24_384": find("cait_xs24_384"),
    "cait_s24_384": find("cait_s24_384"),
    "vit_base_patch16_224": find("vit_b"),
}
MODELS = [pytest.param(name, config, id=name) for name, config in FAST.items()] + [
    pytest.param(name, config, id=name, marks=pytest.mark.slow) for name, config in SLOW.items()
]


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("name", "config"), MODELS)
@torch.no_grad()
def test_scores_agree_with_timm(name, config, dtype, tolerance):
    theirs = timm_twin(name, dtype)
    ours = our_twin(config, theirs.state_dict())
    images = sine_images(1, 3, *config.image_size, dtype)
    expected = theirs(images)
    assert expected.abs().max() > 0.1
    assert largest_difference(ours(images).scores(), expected) < tolerance


@torch.no_grad()
def test_both_heads_of_a_distilled_model_agree_with_timm():
    theirs = timm_twin("deit_tiny_distilled_patch16_224", torch.float64)
    ours = our_twin(find("deit_ti_distilled"), theirs.state_dict())
    theirs.set_distilled_training(True)
    theirs.train()
    images = sine_images(1, 3, 224, 224, torch.float64)
    prediction = ours(images)
    for mine, yours in zip((prediction.image_logits, prediction.distillation_logits), theirs(images), strict=True):
        assert largest_difference(mine, yours) < 1e-9


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(
    "depth", [pytest.param(3, id="3 blocks"), pytest.param(18, id="18 blocks", marks=pytest.mark.slow)]
)
@torch.no_grad()
def test_parallel_branches_agree_with_timm_run_wide_and_one_by_one(depth, dtype, tolerance):
    theirs = timm_twin("vit_small_patch16_18x2_224", dtype, {"depth": depth})
    ours = our_twin(replace(PARALLEL, depth=depth), theirs.state_dict())
    images = sine_images(1, 3, 224, 224, dtype)
    expected = theirs(images)
    assert largest_difference(ours(images).image_logits, expected) < tolerance
    run_branches_one_by_one(ours)
    assert largest_difference(ours(images).image_logits, expected) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@torch.no_grad()
def test_average_pooling_agrees_with_timm(dtype, tolerance):
    arguments = {"global_pool": "avg", "class_token": False, "fc_norm": False}
    theirs = timm_twin("vit_tiny_patch16_224", dtype, arguments)
    ours = our_twin(AVERAGE, theirs.state_dict())
    images = sine_images(1, 3, 224, 224, dtype)
    assert largest_difference(ours(images).image_logits, theirs(images)) < tolerance


@torch.no_grad()
def test_rectangles_agree_with_timm():
    theirs = timm_twin("vit_tiny_patch16_224", torch.float64, {"img_size": (96, 160), "depth": 2})
    ours = our_twin(replace(find("vit_ti"), depth=2, image_size=(96, 160)), theirs.state_dict())
    images = sine_images(2, 3, 96, 160, torch.float64)
    assert largest_difference(ours(images).image_logits, theirs(images)) < 1e-9


def test_gradients_agree_with_timm():
    theirs = timm_twin("cait_xxs24_224", torch.float64, {"depth": 2, "img_size": 32})
    config = replace(find("cait_xxs24"), depth=2, class_token_at=2, image_size=(32, 32))
    ours = our_twin(config, theirs.state_dict())
    images = sine_images(2, 3, 32, 32, torch.float64)
    theirs(images).square().sum().backward()
    ours(images).image_logits.square().sum().backward()
    assert largest_difference(ours.stem[0].weight.grad, theirs.patch_embed.proj.weight.grad) < 1e-9
    assert largest_difference(ours.class_tokens.grad, theirs.cls_token.grad[0]) < 1e-9
    assert largest_difference(ours.positions.table.grad, theirs.pos_embed.grad[0]) < 1e-9
