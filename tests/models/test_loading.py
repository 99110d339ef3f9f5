"""Weights of any origin in a model of ours, whatever its image size and classes."""

import re
import warnings
from dataclasses import replace

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed
from torch.nn import functional as F

from alltokens.errors import UserError
from alltokens.models.config import LayerScale
from alltokens.models.convert import to_published
from alltokens.models.factory import create_model, open_model
from alltokens.models.loading import fitting
from alltokens.models.vit import VisionTransformer
from alltokens.models.weights import read_weights, save_model
from alltokens.models.zoo import MODELS, find

from ..kinds import images_for, lively

SMALL = {
    "vit_small_for_tests": replace(find("vit_ti"), depth=2, width=48),
    "distilled_for_tests": replace(find("deit_ti_distilled"), depth=2, width=48),
    "lvvit_for_tests": replace(find("lvvit_t"), depth=2, width=48),
    "cait_for_tests": replace(find("cait_xxs24"), depth=2, width=48, class_token_at=2),
    "parallel_for_tests": replace(find("vit_s_18x2_ls"), depth=2, width=48),
    "deit3_for_tests": replace(find("vit_s_ls"), depth=2, width=48, class_position=False),
}


@pytest.fixture(autouse=True)
def small_models(monkeypatch):
    """Models with two narrow blocks under names of their own."""
    for name, config in SMALL.items():
        monkeypatch.setitem(MODELS, name, config)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.pth.tar"


def published(name: str) -> dict[str, torch.Tensor]:
    """Lively weights of a model in the published layout."""
    return to_published(SMALL[name], lively(SMALL[name]).state_dict())


def heads_apart(model: VisionTransformer) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in model.state_dict().items() if "head" not in key}


def assert_equal_states(found, expected) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in found.items())


@pytest.mark.parametrize("name", SMALL)
def test_a_published_file_gives_the_model_back(name, path):
    torch.save({"state_dict": {f"module.{key}": x for key, x in published(name).items()}}, path)
    model = create_model(name, weights=path)
    assert model.config == SMALL[name]
    assert_equal_states(model.state_dict(), lively(SMALL[name]).state_dict())
    assert_equal_states(to_published(model.config, model.state_dict()), published(name))


@pytest.mark.parametrize("name", SMALL)
def test_a_file_says_by_its_tensors_which_model_it_is(name, path):
    torch.save(published(name), path)
    assert name in fitting(read_weights(path))
    model = open_model(path)
    images = images_for(model.config, batch=1)
    with torch.no_grad():
        expected = lively(SMALL[name]).eval()(images)
        torch.testing.assert_close(model.eval()(images), expected, rtol=0, atol=0)


def test_layer_scale_as_deit_iii_released_it_is_understood(path):
    config = SMALL["deit3_for_tests"]
    state = to_published(config, lively(config).state_dict(), gains="gamma_1")
    assert "blocks.0.gamma_1" in state
    torch.save({"model": state}, path)
    assert_equal_states(create_model("deit3_for_tests", weights=path).state_dict(), lively(config).state_dict())


def test_half_precision_becomes_float32(path):
    torch.save({key: x.half() for key, x in published("vit_small_for_tests").items()}, path)
    model = create_model("vit_small_for_tests", weights=path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_model_of_timms_contract_is_read_too(path):
    model = timm.create_model("lvvit_t", img_size=32)
    torch.save({"state_dict": model.state_dict()}, path)
    loaded = create_model("lvvit_t", image_size=32, weights=path)
    assert_equal_states(loaded.state_dict(), model.model.state_dict())


def test_timms_weights_are_resampled_as_timm_does(path):
    state = published("distilled_for_tests")
    torch.save(state, path)
    model = create_model("distilled_for_tests", image_size=(384, 320), weights=path)
    expected = resample_abs_pos_embed(state["pos_embed"], [24, 20], [14, 14], num_prefix_tokens=2)
    torch.testing.assert_close(model.positions.table, expected[0], rtol=0, atol=0)


def test_released_lvvit_weights_are_resampled_without_antialiasing(path):
    state = published("lvvit_for_tests")
    torch.save(state, path)
    model = create_model("lvvit_for_tests", image_size=384, weights=path)
    table = state["pos_embed"][:, 1:].reshape(1, 14, 14, -1).permute(0, 3, 1, 2)
    expected = F.interpolate(table, (24, 24), mode="bicubic").flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.positions.table[None, 1:], expected)
    torch.testing.assert_close(model.positions.table[None, :1], state["pos_embed"][:, :1], rtol=0, atol=0)


def test_heads_for_other_classes_are_left_out_with_a_warning(path):
    torch.save(published("lvvit_for_tests"), path)
    sentence = f"'{path}' is for 1000 classes: its heads are left out, those for 10 are fresh"
    with pytest.warns(UserWarning, match=f"^{re.escape(sentence)}$"):
        model = create_model("lvvit_for_tests", classes=10, image_size=384, weights=path)
    assert model.config == replace(SMALL["lvvit_for_tests"], classes=10, image_size=(384, 384))
    prediction = model.eval()(images_for(model.config, batch=1))
    assert prediction.image_logits.shape == (1, 10)
    assert prediction.token_logits.shape == (1, 576, 10)
    expected = heads_apart(lively(SMALL["lvvit_for_tests"]))
    del expected["positions.table"]
    assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in expected.items())


def test_the_classes_of_the_file_are_kept_unless_told(path):
    config = replace(SMALL["vit_small_for_tests"], classes=7)
    torch.save(to_published(config, lively(config).state_dict()), path)
    model = create_model("vit_small_for_tests", weights=path)
    assert model.config == config
    assert_equal_states(model.state_dict(), lively(config).state_dict())


def test_a_head_that_is_missing_is_made_with_a_warning(path):
    state = published("lvvit_for_tests")
    torch.save({key: x for key, x in state.items() if not key.startswith("aux_head")}, path)
    sentence = f"'{path}' has no token_head for 1000 classes: a fresh one is made"
    with pytest.warns(UserWarning, match=f"^{re.escape(sentence)}$"):
        model = create_model("lvvit_for_tests", weights=path)
    assert model.token_head.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert torch.equal(model.head.weight, state["head.weight"])


def test_half_a_head_is_no_head(path):
    state = published("vit_small_for_tests")
    del state["head.bias"]
    torch.save(state, path)
    sentence = f"'{path}' has no head for 1000 classes: a fresh one is made"
    with pytest.warns(UserWarning, match=f"^{re.escape(sentence)}$"):
        model = create_model("vit_small_for_tests", weights=path)
    assert not torch.equal(model.head.weight, state["head.weight"])
    assert model.head.bias.count_nonzero() == 0


def test_a_head_that_the_model_lacks_is_left_out_with_a_warning(path):
    config = replace(SMALL["vit_small_for_tests"], token_head=True)
    torch.save(to_published(config, lively(config).state_dict()), path)
    sentence = f"the token_head of '{path}' is left out: the model has none"
    with pytest.warns(UserWarning, match=f"^{re.escape(sentence)}$"):
        model = create_model("vit_small_for_tests", weights=path)
    assert model.token_head is None


def test_a_file_of_another_model_names_what_differs_and_what_would_fit(path):
    torch.save(published("cait_for_tests"), path)
    sentence = (
        f"'{path}' does not fit distilled_for_tests: 50 tensors differ, the first are blocks.0.attn.proj_l.bias, "
        "blocks.0.attn.proj_l.weight, blocks.0.attn.proj_w.bias; it would fit cait_for_tests"
    )
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        create_model("distilled_for_tests", weights=path)


def test_a_file_that_fits_nothing_says_so(path):
    state = published("vit_small_for_tests")
    state["extra"] = state.pop("cls_token")
    torch.save(state, path)
    sentence = (
        f"'{path}' does not fit vit_small_for_tests: 2 tensors differ, the first are cls_token, extra; "
        "it fits no model known by name"
    )
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        create_model("vit_small_for_tests", weights=path)


def test_positions_of_a_rectangle_that_nobody_named_are_refused(path):
    state = published("vit_small_for_tests")
    state["pos_embed"] = torch.zeros(1, 1 + 14 * 20, 48)
    torch.save(state, path)
    with pytest.raises(
        UserError, match=r": 1 tensors differ, the first are pos_embed; it fits no model known by name$"
    ):
        create_model("vit_small_for_tests", weights=path)
    assert create_model("vit_small_for_tests", image_size=(224, 320), weights=path).config.grid == (14, 20)


def test_a_model_that_nobody_published_reads_no_published_file(path):
    torch.save(published("vit_small_for_tests"), path)
    with pytest.raises(UserError, match=r"does not fit vit_b_hmlp_bn: .*it would fit vit_small_for_tests$"):
        create_model("vit_b_hmlp_bn", weights=path)


def test_our_file_of_another_architecture_is_refused_though_its_shapes_fit(path):
    save_model(lively(replace(SMALL["vit_small_for_tests"], heads=6)), path)
    sentence = f"'{path}' does not fit vit_small_for_tests: its heads is 6 and not 3; it fits no model known by name"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        create_model("vit_small_for_tests", weights=path)
    save_model(lively(SMALL["parallel_for_tests"]), path)
    with pytest.raises(UserError, match=r"its heads is 6 and not 3; it would fit parallel_for_tests$"):
        create_model("vit_small_for_tests", weights=path)


def test_our_file_may_drop_and_score_otherwise(path):
    config = replace(SMALL["lvvit_for_tests"], drop_path=0.3, token_weight=0.0, head_dropout=0.1)
    save_model(lively(config), path)
    assert create_model("lvvit_for_tests", weights=path).config == SMALL["lvvit_for_tests"]
    assert open_model(path).config == config


def test_our_file_without_its_config_is_known_by_its_tensors(path):
    torch.save(lively(SMALL["vit_small_for_tests"]).state_dict(), path)
    assert open_model(path).config == SMALL["vit_small_for_tests"]


def test_first_gains_are_no_reason_to_refuse_a_published_file(path):
    config = replace(SMALL["deit3_for_tests"], residual=LayerScale(initial=0.5))
    torch.save(to_published(config, lively(config).state_dict()), path)
    assert create_model("deit3_for_tests", weights=path).config == SMALL["deit3_for_tests"]


def timm_state(name: str, classes: int = 1000) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=classes).state_dict()


def test_timms_own_layout_goes_into_the_adapter(path):
    torch.save({"state_dict": timm_state("resnet10t", classes=7)}, path)
    model = create_model("timm/resnet10t", image_size=64, weights=path)
    assert model.config.classes == 7
    assert_equal_states(model.model.state_dict(), timm_state("resnet10t", classes=7))


def test_the_adapters_file_brings_its_token_head(path):
    model = create_model("timm/resnet10t", classes=5, image_size=64)
    save_model(model, path)
    for loaded in (create_model("timm/resnet10t", image_size=64, weights=path), open_model(path)):
        assert loaded.config == model.config
        assert_equal_states(loaded.state_dict(), model.state_dict())


def test_the_adapter_leaves_out_heads_for_other_classes(path):
    torch.save(timm_state("resnet10t"), path)
    sentence = f"'{path}' is not for 3 classes: its heads are left out, fresh ones are made"
    with pytest.warns(UserWarning, match=f"^{re.escape(sentence)}$"):
        model = create_model("timm/resnet10t", classes=3, image_size=64, weights=path)
    assert torch.equal(model.model.conv1[0].weight, timm_state("resnet10t")["conv1.0.weight"])
    assert model.model.fc.weight.shape[0] == 3


def test_timm_resamples_positions_for_the_adapter(path):
    torch.save(timm_state("vit_tiny_patch16_224"), path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = create_model("timm/vit_tiny_patch16_224", image_size=96, weights=path)
    expected = timm.create_model("vit_tiny_patch16_224")
    expected.load_state_dict(timm_state("vit_tiny_patch16_224"))
    expected.set_input_size(96)
    torch.testing.assert_close(model.model.pos_embed, expected.pos_embed)


def test_the_adapter_refuses_another_models_weights(path):
    torch.save(timm_state("resnet10t"), path)
    with pytest.raises(UserError, match=r"does not fit timm/resnet18: \d+ tensors differ, the first are model\."):
        create_model("timm/resnet18", image_size=64, weights=path)
    save_model(create_model("timm/resnet10t", image_size=64), path)
    sentence = r"does not fit timm/resnet18: its name is resnet10t and not resnet18; it would fit timm/resnet10t$"
    with pytest.raises(UserError, match=sentence):
        create_model("timm/resnet18", image_size=64, weights=path)
    with pytest.raises(
        UserError, match=r"does not fit vit_ti: its width is None and not 192; it would fit timm/resnet10t"
    ):
        create_model("vit_ti", weights=path)
