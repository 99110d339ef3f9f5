"""Our weight files: what goes in comes out, and a file that is not one says so."""

import contextlib
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import tarfile
import warnings
from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from alltokens.errors import UserError
from alltokens.models.factory import open_model
from alltokens.models.timm_model import TimmConfig
from alltokens.models.vit import VisionTransformer
from alltokens.models.weights import CONFIG_KEY, Inside, read_weights, save_model
from alltokens.plain import from_plain, to_plain

from ..kinds import KINDS, TINY, answers, images_for, lively


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_comes_back_as_it_was(kind, path):
    model = lively(KINDS[kind]).eval()
    save_model(model, path)
    loaded = open_model(path)
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
    assert {parameter.dtype for parameter in open_model(path).parameters()} == {dtype}


def test_a_loaded_model_trains(path):
    save_model(lively(KINDS["lvvit"]), path)
    loaded = open_model(path)
    loaded(images_for(loaded.config)).image_logits.sum().backward()
    assert loaded.stem[0].weight.grad.abs().sum() > 0


def test_the_config_lies_in_the_file(path):
    save_model(lively(KINDS["cait"]), path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"
    assert from_plain(Inside, json.loads(metadata[CONFIG_KEY])).model == KINDS["cait"]


def refused(path, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        open_model(path)


DAMAGED = r"'{}' is damaged or no weight file \(.+\); write or download it again$"


@pytest.mark.parametrize("keep", [0, 5, 9, 300, -100])
def test_a_truncated_file_is_refused(keep, path):
    save_model(lively(TINY), path)
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, DAMAGED.format(re.escape(str(path))))


@pytest.mark.parametrize("keep", [3, 300, -100])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_truncated_torch_file_is_refused(keep, zipped, path):
    torch.save(lively(TINY).state_dict(), path, _use_new_zipfile_serialization=zipped)
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, DAMAGED.format(re.escape(str(path))))


class Trap:
    """An object whose unpickling leaves a file behind."""

    def __init__(self, sign):
        self.sign = sign

    def __reduce__(self):
        return os.system, (f"touch {self.sign}",)


@pytest.mark.parametrize("name", ["model.pth", "model.pt.tar", "model.safetensors"])
@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_named_and_not_run(name, zipped, tmp_path):
    path, sign = tmp_path / name, tmp_path / "sign"
    content = {"state_dict": lively(TINY).state_dict(), "args": Trap(sign)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    refused(
        path, re.escape(f"'{path}' holds more than tensors (posix.system), which could run code, so it is not read")
    )
    assert not sign.exists()


def test_a_plain_pickle_with_code_is_not_run(tmp_path):
    path, sign = tmp_path / "model.pkl", tmp_path / "sign"
    path.write_bytes(pickle.dumps(Trap(sign)))
    refused(path, re.escape(f"'{path}' "))
    assert not sign.exists()


def test_a_missing_file_is_refused(path):
    refused(path, re.escape(f"there is no weight file '{path}'") + "$")


def test_a_folder_is_refused(tmp_path):
    refused(tmp_path, re.escape(f"'{tmp_path}' is a folder; give a weight file, such as the model.safetensors in it"))


def test_a_real_tar_archive_is_refused(tmp_path):
    path = tmp_path / "model.pth.tar"
    torch.save(lively(TINY).state_dict(), tmp_path / "model.pth")
    with tarfile.open(path, "w") as archive:
        archive.add(tmp_path / "model.pth", "model.pth")
    refused(path, re.escape(f"'{path}' is a tar archive and no weight file; unpack it and give the file inside") + "$")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([1, 2], "holds no state dict but list; give a file of named tensors"),
        ({}, "holds no state dict but dict; give a file of named tensors"),
        ({"epoch": 3}, "holds no state dict: 'epoch' is no dense tensor; give a file of named tensors"),
        (
            {"state_dict": {1: torch.zeros(1)}},
            "holds no state dict: 1 is no dense tensor; give a file of named tensors",
        ),
        (
            {"a": torch.zeros(2).to_sparse()},
            "holds no state dict: 'a' is no dense tensor; give a file of named tensors",
        ),
        ({"a": torch.zeros(1)}, "does not say which model it is, and fits none known by name; name the model"),
    ],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants", "ignore:Sparse invariant checks")
def test_what_is_no_state_dict_is_refused(content, sentence, path):
    torch.save(content, path)
    refused(path, re.escape(f"'{path}' {sentence}") + "$")


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "model_state_dict", "state_dict_ema", "model_ema"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module.", "module.model."])
def test_wrappings_of_training_scripts_are_taken_off(wrapper, prefix, path):
    state = lively(TINY).state_dict()
    torch.save({"epoch": 1, wrapper: {f"{prefix}{key}": tensor for key, tensor in state.items()}}, path)
    found = read_weights(path).state
    assert found.keys() == state.keys()
    assert all(torch.equal(tensor, state[key]) for key, tensor in found.items())


def test_averaged_weights_are_preferred(path):
    plain, averaged = ({"a": torch.full((1,), value)} for value in (1.0, 2.0))
    torch.save({"state_dict": plain, "state_dict_ema": averaged, "args": Namespace(lr=0.1)}, path)
    assert read_weights(path).state["a"] == 2.0
    torch.save({"state_dict": plain, "state_dict_ema": None}, path)
    assert read_weights(path).state["a"] == 1.0


@pytest.mark.parametrize(
    ("config", "first"),
    [
        pytest.param(replace(TINY, classes=7), "head.bias, head.weight", id="other shapes"),
        pytest.param(
            replace(TINY, depth=1),
            "blocks.1.attention.input.bias, blocks.1.attention.input.weight, blocks.1.attention.norm.bias",
            id="too many tensors",
        ),
        pytest.param(replace(TINY, token_head=True), "token_head.bias, token_head.weight", id="too few tensors"),
        pytest.param(TimmConfig(name="resnet10t", image_size=(64, 64)), "blocks.0.", id="another kind"),
    ],
)
def test_the_weights_of_another_config_are_refused(config, first, path):
    model = lively(TINY)
    save_file(model.state_dict(), path, {"format": "pt", CONFIG_KEY: json.dumps(to_plain(Inside(config)))})
    refused(
        path, re.escape(f"'{path}' does not hold the model its config describes; the first that differ are {first}")
    )


def test_a_config_of_a_later_version_is_refused(path):
    inside = to_plain(Inside(TINY))
    inside["model"]["experts"] = 8
    save_file(lively(TINY).state_dict(), path, {CONFIG_KEY: json.dumps(inside)})
    sentence = f"'{path}' has a config inside that is not one of ours: unknown key 'model.experts'"
    refused(path, re.escape(sentence))


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_a_damaged_config_is_refused(text, path):
    save_file(lively(TINY).state_dict(), path, {CONFIG_KEY: text})
    refused(path, re.escape(f"'{path}' has an alltokens config that is not JSON; "))


@pytest.mark.parametrize("kind", ["ours", "safetensors", "torch", "legacy torch"])
def test_random_damage_is_never_a_traceback(kind, path):
    """Fifty damages each: bytes changed, cut off or inserted, mostly near the start, where the structure is."""
    model = VisionTransformer(replace(TINY, depth=1))
    if kind == "ours":
        save_model(model, path)
    elif kind == "safetensors":
        save_file(model.state_dict(), path)
    else:
        torch.save({"state_dict": model.state_dict()}, path, _use_new_zipfile_serialization=kind == "torch")
    whole, chance = path.read_bytes(), random.Random(kind)
    for _ in range(50):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            near_start = chance.random() < 0.7
            place = chance.randrange(min(2000, len(content)) if near_start else len(content))
            match chance.choice("change cut insert".split()):
                case "change":
                    content[place] = chance.randrange(256)
                case "cut":
                    del content[place : place + chance.choice([1, 100, len(whole)])]
                case "insert":
                    content[place:place] = chance.randbytes(chance.choice([1, 100]))
            if not content:
                break
        path.write_bytes(content)
        with contextlib.suppress(UserError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            open_model(path, "vit_ti" if kind != "ours" else None)


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
    loaded = open_model(path)
    assert all(torch.equal(tensor, old.state_dict()[key]) for key, tensor in loaded.state_dict().items())


def test_a_model_on_the_meta_device_has_nothing_to_save(path):
    with torch.device("meta"):
        model = VisionTransformer(TINY)
    with pytest.raises((NotImplementedError, RuntimeError, ValueError)):
        save_model(model, path)
    assert not path.exists()
