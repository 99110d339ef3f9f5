"""Our weight files: what goes in comes out, and a file that is not one says so."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from alltokens.errors import UserError
from alltokens.models.config import ViTConfig
from alltokens.models.vit import VisionTransformer
from alltokens.models.weights import CONFIG_KEY, load_model, save_model
from alltokens.plain import from_plain, to_plain

from ..kinds import KINDS, TINY, answers, images_for, lively


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_comes_back_as_it_was(kind, path):
    model = lively(KINDS[kind]).eval()
    save_model(model, path)
    loaded = load_model(path)
    assert loaded.config == model.config
    assert loaded.training
    frozen = {key for key, parameter in model.named_parameters() if not parameter.requires_grad}
    assert {key for key, parameter in loaded.named_parameters() if not parameter.requires_grad} == frozen
    state = model.state_dict()
    assert list(loaded.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[key]) for key, tensor in loaded.state_dict().items())
    images = images_for(model.config)
    torch.testing.assert_close(answers(loaded.eval(), images), answers(model, images), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_type_of_the_weights_is_kept(dtype, path):
    save_model(lively(TINY).to(dtype), path)
    assert {parameter.dtype for parameter in load_model(path).parameters()} == {dtype}


def test_a_loaded_model_trains(path):
    save_model(lively(KINDS["lvvit"]), path)
    loaded = load_model(path)
    loaded(images_for(loaded.config)).image_logits.sum().backward()
    assert loaded.stem[0].weight.grad.abs().sum() > 0


def test_the_config_lies_in_the_file(path):
    save_model(lively(KINDS["cait"]), path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"
    assert from_plain(ViTConfig, json.loads(metadata[CONFIG_KEY])) == KINDS["cait"]


def refused(path, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        load_model(path)


def test_a_truncated_file_is_refused(path):
    save_model(lively(TINY), path)
    path.write_bytes(path.read_bytes()[:-100])
    refused(path, re.escape(f"cannot read '{path}' as safetensors: "))


def test_a_pickle_is_refused_unread(path):
    torch.save(lively(TINY).state_dict(), path)
    refused(path, re.escape(f"cannot read '{path}' as safetensors: "))


def test_an_empty_file_is_refused(path):
    path.write_bytes(b"")
    refused(path, re.escape(f"cannot read '{path}' as safetensors: "))


def test_a_missing_file_is_refused(path):
    refused(path, re.escape(f"cannot read '{path}' as safetensors: "))


def test_a_folder_is_refused(tmp_path):
    refused(tmp_path, re.escape(f"cannot read '{tmp_path}' as safetensors: "))


def test_a_file_without_a_config_is_refused(path):
    save_file(lively(TINY).state_dict(), path)
    refused(path, re.escape(f"'{path}' has no alltokens config inside; give a file that save_model wrote") + "$")


@pytest.mark.parametrize(
    ("config", "first"),
    [
        pytest.param(replace(TINY, classes=7), "head.bias (5,)", id="other shapes"),
        pytest.param(replace(TINY, depth=1), "blocks.1.attention.input.bias (72,)", id="too many tensors"),
        pytest.param(replace(TINY, token_head=True), "token_head.bias (5,)", id="too few tensors"),
    ],
)
def test_the_weights_of_another_config_are_refused(config, first, path):
    model = lively(TINY)
    save_file(model.state_dict(), path, {"format": "pt", CONFIG_KEY: json.dumps(to_plain(config))})
    sentence = f"'{path}' does not hold the model its config describes; the first difference is {first}"
    refused(path, re.escape(sentence) + "$")


def test_a_config_of_a_later_version_is_refused(path):
    plain = to_plain(TINY) | {"experts": 8}
    save_file(lively(TINY).state_dict(), path, {CONFIG_KEY: json.dumps(plain)})
    refused(path, r"unknown key 'experts'")


def test_a_damaged_config_is_refused(path):
    save_file(lively(TINY).state_dict(), path, {CONFIG_KEY: "{"})
    refused(path, re.escape(f"'{path}' has an alltokens config that is not JSON; "))


KILLED_WHILE_WRITING = """
import os, signal, sys
from alltokens.models import weights
from alltokens.models.config import ViTConfig
from alltokens.models.vit import VisionTransformer

whole_write = weights.write_atomically

def interrupted_write(path, write):
    def half(file):
        write(file)
        file.truncate(file.tell() // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    whole_write(path, half)

weights.write_atomically = interrupted_write
weights.save_model(VisionTransformer(ViTConfig(width=24, depth=1, heads=2, image_size=(32, 32))), sys.argv[1])
"""


def test_a_killed_save_leaves_the_old_file(path):
    old = lively(TINY)
    save_model(old, path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(path)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    loaded = load_model(path)
    assert all(torch.equal(tensor, old.state_dict()[key]) for key, tensor in loaded.state_dict().items())


def test_a_model_on_the_meta_device_has_nothing_to_save(path):
    with torch.device("meta"):
        model = VisionTransformer(TINY)
    with pytest.raises((NotImplementedError, RuntimeError, ValueError)):
        save_model(model, path)
    assert not path.exists()
