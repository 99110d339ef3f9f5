"""Models by name."""

from dataclasses import replace

import pytest
import torch

from alltokens.errors import UserError
from alltokens.models.factory import create_model, open_model
from alltokens.models.resize import set_image_size
from alltokens.models.weights import save_model
from alltokens.models.zoo import MODELS, find

from ..kinds import images_for


@pytest.fixture(autouse=True)
def small_model(monkeypatch):
    """vit_ti with two blocks under a name of its own."""
    small = replace(find("vit_ti"), depth=2)
    monkeypatch.setitem(MODELS, "vit_small_for_tests", small)


def test_a_name_gives_its_architecture_in_training_mode():
    model = create_model("vit_small_for_tests")
    assert model.config == find("vit_small_for_tests")
    assert model.training


def test_classes_and_image_size_replace_the_names_own():
    model = create_model("vit_small_for_tests", classes=7, image_size=(32, 64))
    assert model.config == replace(find("vit_small_for_tests"), classes=7, image_size=(32, 64))
    assert model(images_for(model.config)).image_logits.shape == (2, 7)
    assert create_model("vit_small_for_tests", image_size=64).config.image_size == (64, 64)


def test_an_unknown_name_suggests_others():
    with pytest.raises(UserError, match=r"^unknown model 'lvit_s'; did you mean .*lvvit_s"):
        create_model("lvit_s")


def test_no_classes_are_refused():
    with pytest.raises(UserError, match=r"^classes must be above 0; got classes=0$"):
        create_model("vit_small_for_tests", classes=0)


def test_saved_weights_come_back(tmp_path):
    saved = create_model("vit_small_for_tests", classes=3, image_size=32)
    save_model(saved, tmp_path / "model.safetensors")
    loaded = create_model("vit_small_for_tests", classes=3, image_size=32, weights=tmp_path / "model.safetensors")
    assert loaded.config == saved.config
    images = images_for(saved.config)
    torch.testing.assert_close(loaded.eval()(images).image_logits, saved.eval()(images).image_logits, rtol=0, atol=0)


def test_weights_of_another_size_are_resampled(tmp_path):
    saved = create_model("vit_small_for_tests", classes=3, image_size=32)
    save_model(saved, tmp_path / "model.safetensors")
    loaded = create_model("vit_small_for_tests", classes=3, image_size=(64, 48), weights=tmp_path / "model.safetensors")
    set_image_size(saved, 64, 48)
    assert loaded.config == saved.config
    torch.testing.assert_close(loaded.positions.table, saved.positions.table, rtol=0, atol=0)


def test_a_word_that_is_neither_model_nor_file_suggests_models():
    with pytest.raises(UserError, match=r"^'lvit_s' is neither a model nor a file; did you mean .*lvvit_s"):
        open_model("lvit_s")


def test_a_model_is_opened_by_name_or_path(tmp_path):
    path = tmp_path / "model.safetensors"
    assert open_model("vit_small_for_tests").config == find("vit_small_for_tests")
    save_model(create_model("vit_small_for_tests", classes=3, image_size=32), path)
    assert open_model(path).config == replace(find("vit_small_for_tests"), classes=3, image_size=(32, 32))
    assert open_model(path, "vit_small_for_tests").config == replace(find("vit_small_for_tests"), classes=3)
