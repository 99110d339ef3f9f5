"""Our models inside timm: what timm's own code asks of a model."""

from dataclasses import replace

import pytest
import timm
import torch
from timm.data import resolve_model_data_config
from timm.layers import resample_abs_pos_embed
from timm.models import load_checkpoint
from timm.optim import create_optimizer_v2
from timm.optim._param_groups import param_groups_layer_decay, param_groups_weight_decay
from timm.utils import CheckpointSaver
from torch import nn

import alltokens
from alltokens.models.config import T2TStem
from alltokens.models.timm_contract import NAMES, TimmVisionTransformer, pretrained_cfg
from alltokens.models.weights import save_model
from alltokens.models.zoo import find

from ..kinds import KINDS, images_for, lively


def wrapped(kind: str) -> TimmVisionTransformer:
    """A tiny model with lively weights under timm's contract."""
    model = TimmVisionTransformer(KINDS[kind], num_classes=5)
    model.model.load_state_dict(lively(KINDS[kind]).state_dict())
    return model


@torch.no_grad()
def test_a_token_labelled_model_answers_image_logits_in_training_and_scores_in_evaluation():
    model, images = wrapped("lvvit").eval(), images_for(KINDS["lvvit"])
    prediction = model.model(images)
    scores = prediction.image_logits + 0.5 * prediction.token_logits.max(1).values
    torch.testing.assert_close(model(images), scores, rtol=0, atol=0)
    model.train()
    model.model.stem.eval()
    torch.testing.assert_close(model(images), prediction.image_logits, rtol=0, atol=0)


@torch.no_grad()
def test_a_distilled_model_averages_its_heads_in_evaluation():
    model, images = wrapped("distilled").eval(), images_for(KINDS["distilled"])
    prediction = model.model(images)
    expected = (prediction.image_logits + prediction.distillation_logits) / 2
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_features_and_head_compose_to_the_answer(kind):
    model, images = wrapped(kind).eval(), images_for(KINDS[kind])
    features = model.forward_features(images)
    assert features.shape[::2] == (2, model.num_features)
    torch.testing.assert_close(model.forward_head(features), model(images), rtol=0, atol=0)
    assert model.forward_head(features, pre_logits=True).shape == (2, model.head_hidden_size)


@torch.no_grad()
def test_what_the_head_sees_becomes_the_logits():
    model, images = wrapped("average pool").eval(), images_for(KINDS["average pool"])
    seen = model.forward_head(model.forward_features(images), pre_logits=True)
    torch.testing.assert_close(model.get_classifier()(seen), model(images))


def test_the_classifier_is_the_image_head_and_is_replaced():
    model = wrapped("lvvit")
    assert model.get_classifier() is model.model.head
    model.reset_classifier(7)
    assert model.num_classes == model.get_classifier().out_features == model.model.token_head.out_features == 7
    assert model.eval()(images_for(KINDS["lvvit"])).shape == (2, 7)


@pytest.mark.parametrize("kind", ["lvvit", "distilled", "cait distilled", "average pool"])
@pytest.mark.parametrize("training", [True, False])
@torch.no_grad()
def test_no_classes_leave_the_features(kind, training):
    model, images = wrapped(kind).train(training), images_for(KINDS[kind])
    model.reset_classifier(0)
    assert isinstance(model.get_classifier(), nn.Identity)
    assert not [name for name, _ in model.named_parameters() if "head." in name]
    features = model.forward_features(images)
    torch.testing.assert_close(model.forward_head(features), model.forward_head(features, pre_logits=True))
    assert model(images).shape == (2, 24)


@pytest.mark.parametrize("kind", ["lvvit", "distilled"])
@torch.no_grad()
def test_heads_come_back_after_no_classes(kind):
    model = wrapped(kind).eval()
    keys = list(model.state_dict())
    model.reset_classifier(0)
    model.reset_classifier(9)
    assert sorted(model.state_dict()) == sorted(keys)
    assert model(images_for(KINDS[kind])).shape == (2, 9)


def test_training_reaches_both_heads_of_a_distilled_model_as_in_timm():
    """Evaluation averages the two, so a plain training loop must train the two."""
    model = wrapped("distilled").train()
    model(images_for(KINDS["distilled"])).square().sum().backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


def test_arguments_of_create_model_reach_the_model():
    model = timm.create_model("vit_ti", num_classes=4, in_chans=1, img_size=(32, 64), drop_rate=0.2, drop_path_rate=0.3)
    config = replace(find("vit_ti"), classes=4, channels=1, image_size=(32, 64), head_dropout=0.2, drop_path=0.3)
    assert model.model.config == config
    assert model(torch.zeros(2, 1, 32, 64)).shape == (2, 4)
    assert timm.create_model("vit_ti", img_size=64).model.config.image_size == (64, 64)


def test_a_model_without_classes_is_built_so():
    model = timm.create_model("lvvit_t", num_classes=0, img_size=32).eval()
    assert model.num_classes == 0
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 240)


@pytest.mark.parametrize("name", ["vit_ti", "cait_xxs24"])
def test_features_only_gives_maps_of_the_chosen_blocks(name):
    images = torch.randn(1, 3, 64, 32, generator=torch.Generator().manual_seed(0))
    model = timm.create_model(name, features_only=True, img_size=(64, 32), out_indices=(1, 3)).eval()
    assert model.feature_info.channels() == [192, 192]
    assert model.feature_info.reduction() == [16, 16]
    with torch.no_grad():
        maps = model(images)
        expected = model.model.forward_intermediates(images, [1, 3], intermediates_only=True)
    assert [tuple(x.shape) for x in maps] == [(1, 192, 4, 2)] * 2
    torch.testing.assert_close(maps, expected, rtol=0, atol=0)


def test_features_only_gives_the_last_three_blocks_unless_told():
    model = timm.create_model("vit_ti", features_only=True, img_size=32)
    assert len(model(torch.zeros(1, 3, 32, 32))) == 3


@pytest.mark.parametrize("kind", ["cait", "relative", "local stem", "fixup", "parallel without bias"])
def test_weight_decay_spares_tokens_positions_and_whatever_has_one_dimension(kind):
    model = wrapped(kind)
    spared, decayed = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    assert (spared["weight_decay"], decayed["weight_decay"]) == (0.0, 0.05)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed_names = {names[id(parameter)] for parameter in decayed["params"]}
    expected = {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and parameter.ndim > 1
        and not name.endswith(("class_tokens", "table", "stem.positions"))
    }
    assert decayed_names == expected


def test_layer_decay_falls_from_the_heads_to_the_stem():
    model = wrapped("cait")
    groups = param_groups_layer_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay(), layer_decay=0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    scales = {names[id(parameter)]: group["lr_scale"] for group in groups for parameter in group["params"]}
    assert len(scales) == len(names)
    order = ["stem.0.weight", "blocks.0.mlp.input.weight", "blocks.1.attention.output.weight"]
    order += ["class_blocks.0.attention.query.weight", "class_blocks.1.mlp.norm.bias", "head.weight"]
    assert [scales[f"model.{name}"] for name in order] == pytest.approx([0.5**5, 0.5**4, 0.5**3, 0.5**2, 0.5, 1.0])
    for name in ("class_tokens", "positions.table"):
        assert scales[f"model.{name}"] == pytest.approx(0.5**5)
    assert scales["model.norm.weight"] == 1.0


def test_timms_optimizer_factory_takes_the_model():
    model = wrapped("lvvit")
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.75)
    before = model.model.head.weight.detach().clone()
    model(images_for(KINDS["lvvit"])).sum().backward()
    optimizer.step()
    assert not torch.equal(model.model.head.weight, before)


def test_gradient_checkpointing_is_switched():
    model = wrapped("vit")
    model.set_grad_checkpointing()
    assert model.model.checkpoint_gradients
    model.set_grad_checkpointing(False)
    assert not model.model.checkpoint_gradients


@torch.no_grad()
def test_another_input_size_resamples_as_timm_does():
    model = wrapped("vit").eval()
    before = model.model.positions.table.clone()
    model.set_input_size((64, 32))
    expected = resample_abs_pos_embed(before[None], [4, 2], [2, 3], num_prefix_tokens=1)[0]
    torch.testing.assert_close(model.model.positions.table, expected, rtol=0, atol=0)
    assert model(torch.zeros(1, 3, 64, 32)).shape == (1, 5)
    model.set_input_size(48)
    assert model.model.config.image_size == (48, 48)


def test_a_checkpoint_that_timm_saves_is_loaded_by_timm(tmp_path):
    saved = wrapped("cait")
    optimizer = create_optimizer_v2(saved, opt="sgd", lr=0.1)
    saver = CheckpointSaver(saved, optimizer, checkpoint_dir=str(tmp_path), recovery_dir=str(tmp_path))
    saver.save_checkpoint(epoch=0, metric=1.0)
    loaded = TimmVisionTransformer(KINDS["cait"], num_classes=5)
    load_checkpoint(loaded, str(tmp_path / "last.pth.tar"))
    state = saved.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in loaded.state_dict().items())


def test_a_weight_file_of_ours_is_loaded_by_timm(tmp_path):
    model = alltokens.create_model("lvvit_t", classes=3, image_size=32).eval()
    save_model(model, tmp_path / "model.safetensors")
    path = str(tmp_path / "model.safetensors")
    theirs = timm.create_model("lvvit_t", num_classes=3, img_size=32, checkpoint_path=path).eval()
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(theirs(images), model(images).scores(0.5), rtol=0, atol=0)


def test_timms_transforms_find_our_input():
    model = timm.create_model("lvvit_m", img_size=32)
    data = resolve_model_data_config(model)
    assert data["input_size"] == (3, 224, 224)
    assert (data["crop_pct"], data["interpolation"]) == (1.0, "bicubic")
    assert data["mean"] == (0.485, 0.456, 0.406)
    assert data["std"] == (0.229, 0.224, 0.225)


@pytest.mark.parametrize("kind", KINDS)
def test_first_layer_and_classifier_are_where_the_config_says(kind):
    model = wrapped(kind)
    config = pretrained_cfg("vit_ti", KINDS[kind])
    if isinstance(KINDS[kind].stem, T2TStem):
        assert config["first_conv"] is None
    else:
        assert isinstance(model.get_submodule(config["first_conv"]), nn.Conv2d)
    names = config["classifier"] if isinstance(config["classifier"], tuple) else (config["classifier"],)
    assert model.get_submodule(names[0]) is model.get_classifier()
    heads = {name.rsplit(".", 1)[0] for name, _ in model.named_parameters() if "head." in name}
    assert set(names) == heads - {"model.token_head"}


def test_names_that_timm_has_keep_timms_model():
    shared = [name for registered, name in NAMES.items() if registered != name]
    assert "cait_s24_384" in shared
    for name in shared:
        assert not timm.models.model_entrypoint(name).__module__.startswith("alltokens"), name
        assert timm.models.model_entrypoint(f"alltokens_{name}").__module__.startswith("alltokens"), name
