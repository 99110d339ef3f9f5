"""Weight files and folders for timm are loaded by timm itself and answer as the model does."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from timm.data import resolve_model_data_config

from alltokens.errors import UserError
from alltokens.export import scores
from alltokens.export.hub import TIMM_NAMES, timm_architecture, write_hub, write_timm
from alltokens.export.scores import Record, record
from alltokens.models.config import LayerScale
from alltokens.models.convert import from_published
from alltokens.models.factory import open_model
from alltokens.models.timm_model import TimmClassifier, TimmConfig
from alltokens.models.vit import VisionTransformer
from alltokens.models.zoo import find
from alltokens.plain import to_plain

from ..kinds import KINDS, TINY, images_for, lively

ABOUT = Record(
    model="tiny",
    image_size=TINY.image_size,
    crop_ratio=0.8,
    interpolation="bicubic",
    mean=(0.1, 0.2, 0.3),
    standard_deviation=(0.4, 0.5, 0.6),
)
# Kinds that timm has under a name of its own, and the name.
IN_TIMM = {
    "vit": "vit_tiny_patch16_224",
    "distilled": "deit_tiny_distilled_patch16_224",
    "cait": "cait_xxs24_224",
    "frozen gains": "vit_small_patch16_36x1_224",
    "parallel with gains": "vit_small_patch16_18x2_224",
    "vit with a token head": "vit_tiny_patch16_224",
}
CONFIGS = KINDS | {
    "parallel with gains": replace(TINY, branches=2, residual=LayerScale(initial=1.0)),
    "vit with a token head": replace(TINY, token_head=True),
    "vit with token scores": replace(TINY, token_head=True, token_weight=0.5),
}


@torch.no_grad()
def largest_difference(model, loaded) -> float:
    """Over batches of 1 and 5, against the model in float64, relative to scores above 1."""
    exact = VisionTransformer(model.config).double().eval()
    exact.load_state_dict(model.state_dict())
    differences = []
    for batch in (1, 5):
        images = images_for(model.config, batch, seed=7)
        expected = exact(images.double()).scores(model.config.token_weight)
        difference = (loaded.eval()(images) - expected).abs().max() / expected.abs().max().clamp(min=1.0)
        differences.append(float(difference))
    return max(differences)


@pytest.mark.parametrize("kind", IN_TIMM)
def test_a_weight_file_is_loaded_by_timm_and_answers_the_same(tmp_path, kind):
    model, path = lively(CONFIGS[kind]), tmp_path / "tiny.safetensors"
    written = write_timm(model, ABOUT, path)
    name, arguments = timm_architecture(model.config)
    assert name == IN_TIMM[kind]
    assert largest_difference(model, timm.create_model(name, checkpoint_path=path, **arguments)) < 1e-4
    assert written.difference < 1e-4
    assert written.notes[0].startswith(f'load it with timm.create_model("{name}", embed_dim=24, ')
    assert written.notes[0].endswith(f'checkpoint_path="{path}")')


@pytest.mark.parametrize("kind", ["lvvit", "parallel", "vit with token scores"])
def test_a_weight_file_of_a_model_that_timm_lacks_has_the_released_names(tmp_path, kind):
    model, path = lively(CONFIGS[kind]), tmp_path / "tiny.safetensors"
    written = write_timm(model, ABOUT, path)
    assert written.notes == ("timm has no such model: its tensors are named as in published checkpoints",)
    state = load_file(path)
    assert "pos_embed" in state
    assert ("aux_head.weight" in state) == model.config.token_head
    ours = from_published(model.config, state)
    assert all(torch.equal(ours[key], tensor) for key, tensor in model.state_dict().items())


def test_a_weight_file_of_a_model_without_a_published_layout_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"^no published layout has sinusoidal positions$"):
        write_timm(lively(KINDS["sinusoidal"]), ABOUT, tmp_path / "tiny.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_weight_file_says_how_images_are_prepared(tmp_path):
    path = tmp_path / "tiny.safetensors"
    write_timm(lively(TINY), ABOUT, path)
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {
            "format": "pt",
            "model": "tiny",
            "image_size": "[32, 48]",
            "crop_ratio": "0.8",
            "interpolation": "bicubic",
            "mean": "[0.1, 0.2, 0.3]",
            "standard_deviation": "[0.4, 0.5, 0.6]",
        }


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_folder_is_loaded_by_timm_and_answers_the_same(tmp_path, kind):
    model, path = lively(CONFIGS[kind]), tmp_path / "tiny-hub"
    written = write_hub(model, ABOUT, path)
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((path / "config.json").read_text())["architecture"] == IN_TIMM.get(kind, "alltokens_vit")
    assert largest_difference(model, timm.create_model(f"local-dir:{path}", pretrained=True)) < 1e-4
    after = "" if kind in IN_TIMM else " after import alltokens"
    assert written.notes[0] == f'load it with timm.create_model("local-dir:{path}", pretrained=True){after}'


def test_a_folder_of_an_architecture_of_timms_needs_no_alltokens(tmp_path):
    model, path = lively(KINDS["cait"]), tmp_path / "tiny-hub"
    write_hub(model, ABOUT, path)
    images = images_for(model.config)
    torch.save(images, tmp_path / "images.pt")
    script = (
        "import sys, timm, torch; images = torch.load(sys.argv[2]);"
        "model = timm.create_model('local-dir:' + sys.argv[1], pretrained=True).eval();"
        "torch.save(model(images), sys.argv[3]); assert 'alltokens' not in sys.modules"
    )
    files = [path, tmp_path / "images.pt", tmp_path / "scores.pt"]
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, *files], check=True)
    expected = model.eval()(images).image_logits
    torch.testing.assert_close(torch.load(files[2]), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["vit", "lvvit"])
def test_timm_finds_in_a_folder_how_images_are_prepared(tmp_path, kind):
    write_hub(lively(CONFIGS[kind]), ABOUT, tmp_path / "hub")
    data = resolve_model_data_config(timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True))
    assert list(data["input_size"]) == [3, 32, 48]
    assert (data["crop_pct"], data["interpolation"]) == (0.8, "bicubic")
    assert (list(data["mean"]), list(data["std"])) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])


@pytest.mark.parametrize("kind", ["vit", "lvvit", "distilled", "cait distilled", "t2t stem"])
def test_timm_gives_a_folders_model_other_classes(tmp_path, kind):
    model = lively(CONFIGS[kind])
    write_hub(model, ABOUT, tmp_path / "hub")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True, num_classes=7).eval()
    assert loaded(images_for(model.config)).shape == (2, 7)
    folder_state, state = load_file(tmp_path / "hub" / "model.safetensors"), loaded.state_dict()
    assert all(torch.equal(state[key], folder_state[key]) for key in state if "head" not in key)


@pytest.mark.parametrize("kind", ["vit", "lvvit", "local stem"])
def test_timm_gives_a_folders_model_other_channels(tmp_path, kind):
    model = lively(CONFIGS[kind])
    write_hub(model, ABOUT, tmp_path / "hub")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True, in_chans=1).eval()
    gray = images_for(model.config)[:, :1]
    expected = model.eval()(gray.expand(-1, 3, -1, -1)).scores(model.config.token_weight)
    torch.testing.assert_close(loaded(gray), expected, rtol=0, atol=1e-4)


def test_a_token_head_that_scores_do_not_use_is_left_out_and_that_is_said(tmp_path):
    model = lively(CONFIGS["vit with a token head"])
    for write, name in ((write_timm, "file"), (write_hub, "folder")):
        notes = write(model, ABOUT, tmp_path / name).notes
        assert notes[1:] == ("its token head is left out: timm answers with the image logits alone",)


@pytest.fixture(scope="module")
def resnet() -> TimmClassifier:
    """A CNN of timm's whose token head counts, with batch norms that do something."""
    config = TimmConfig(name="resnet10t", classes=5, image_size=(64, 32), token_weight=0.5)
    torch.manual_seed(0)
    model = TimmClassifier(config)
    model(images_for(config, 8))
    return model.eval()


@torch.no_grad()
def test_timms_own_model_is_written_without_its_token_head(tmp_path, resnet):
    images = images_for(resnet.config)
    expected, note = resnet(images).image_logits, "its token head is left out: timm answers with the image logits alone"
    path = tmp_path / "resnet10t.safetensors"
    line = f'load it with timm.create_model("resnet10t", num_classes=5, in_chans=3, checkpoint_path="{path}")'
    assert write_timm(resnet, ABOUT, path).notes == (line, note)
    loaded = timm.create_model("resnet10t", num_classes=5, checkpoint_path=path).eval()
    torch.testing.assert_close(loaded(images), expected, rtol=0, atol=1e-5)
    path = tmp_path / "hub"
    line = f'load it with timm.create_model("local-dir:{path}", pretrained=True)'
    assert write_hub(resnet, record(resnet, "resnet10t", None), path).notes == (line, note)
    loaded = timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    torch.testing.assert_close(loaded(images), expected, rtol=0, atol=1e-5)
    data, own = (resolve_model_data_config(built) for built in (loaded, timm.create_model("resnet10t")))
    assert list(data["input_size"]) == [3, 64, 32]
    assert (data["crop_pct"], data["interpolation"]) == (own["crop_pct"], own["interpolation"])
    assert (list(data["mean"]), list(data["std"])) == (list(own["mean"]), list(own["std"]))


@torch.no_grad()
def test_timms_own_model_keeps_its_image_size_in_a_folder(tmp_path):
    model = TimmClassifier(TimmConfig(name="test_vit", classes=3, image_size=(32, 64)))
    write_hub(model, record(model, "test_vit", None), tmp_path / "hub")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).eval()
    assert loaded(images_for(model.config)).shape == (2, 3)


@pytest.mark.parametrize("name", TIMM_NAMES)
def test_a_published_model_has_timms_name_without_arguments(name):
    assert timm_architecture(find(TIMM_NAMES[name])) == (name, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM_NAMES)
def test_the_model_of_that_name_has_our_shapes(name):
    config = find(TIMM_NAMES[name])
    with torch.device("meta"):
        theirs = timm.create_model(name)
        expected = VisionTransformer(config).state_dict()
    ours = from_published(config, theirs.state_dict())
    assert {key: x.shape for key, x in ours.items()} == {key: x.shape for key, x in expected.items()}


def test_other_sizes_are_arguments_of_the_closest_name():
    config = replace(find("vit_s"), classes=10, image_size=(96, 128), depth=7)
    arguments = {"num_classes": 10, "img_size": (96, 128), "depth": 7}
    assert timm_architecture(config) == ("vit_small_patch16_224", arguments)


def test_timm_builds_any_architecture_from_its_plain_config_with_its_own_sizes_unless_told():
    config = replace(KINDS["lvvit"], channels=2)
    model = timm.create_model("alltokens_vit", config=to_plain(config))
    assert model.model.config == config
    assert timm.create_model("alltokens_vit", config=to_plain(config), num_classes=3).model.config.classes == 3


@pytest.mark.parametrize("write", [write_timm, write_hub])
def test_nothing_is_left_of_what_answers_differently(tmp_path, monkeypatch, write):
    monkeypatch.setattr(scores, "TOLERANCE", -1.0)
    with pytest.raises(UserError, match=r"^what was exported does not answer as the model does: for a batch of 1 "):
        write(lively(TINY), ABOUT, tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_export_leaves_nothing_under_its_name(tmp_path):
    script = """
import os, signal, sys
from pathlib import Path
from alltokens.export import hub
from alltokens.models.vit import VisionTransformer
from tests.export.test_hub import ABOUT, TINY
hub.check = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
hub.write_hub(VisionTransformer(TINY), ABOUT, Path(sys.argv[1]))
"""
    command = [sys.executable, "-c", script, tmp_path / "tiny"]
    finished = subprocess.run(command, check=False, cwd=Path(__file__).parents[2])
    assert finished.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".tiny.")
    assert left.name.endswith(".part")


def test_a_folder_replaces_an_older_one_whole(tmp_path):
    path = tmp_path / "hub"
    write_hub(lively(TINY, seed=1), ABOUT, path)
    write_hub(lively(TINY, seed=2), ABOUT, path)
    assert [file.name for file in tmp_path.iterdir()] == ["hub"]
    assert largest_difference(lively(TINY, seed=2), timm.create_model(f"local-dir:{path}", pretrained=True)) < 1e-4


def test_an_older_folder_stays_when_its_successor_fails(tmp_path, monkeypatch):
    path = tmp_path / "hub"
    write_hub(lively(TINY, seed=1), ABOUT, path)
    monkeypatch.setattr(scores, "TOLERANCE", -1.0)
    with pytest.raises(UserError, match=r"it was not kept$"):
        write_hub(lively(TINY, seed=2), ABOUT, path)
    assert [file.name for file in tmp_path.iterdir()] == ["hub"]
    assert largest_difference(lively(TINY, seed=1), timm.create_model(f"local-dir:{path}", pretrained=True)) < 1e-4


def test_a_place_that_takes_no_folder_is_one_sentence(tmp_path):
    path = tmp_path / "none" / "hub"
    with pytest.raises(UserError) as error:
        write_hub(lively(TINY), ABOUT, path)
    assert str(error.value) == (f"cannot write '{path}': '{path.parent}' takes no folder (No such file or directory)")


@torch.no_grad()
@pytest.mark.parametrize("name", ["cait_t9_heads_8", "tlv1_t5_divide_by_3"])
@pytest.mark.filterwarnings("ignore:.* has no token_head")
def test_what_was_exported_is_opened_as_the_model_that_it_is(tmp_path: Path, name: str) -> None:
    """Though others have tensors of the same names and shapes."""
    model = lively(find(name))
    write_timm(model, record(model, name, None), tmp_path / "x.safetensors")
    images = images_for(model.config)
    opened = open_model(tmp_path / "x.safetensors").eval()
    torch.testing.assert_close(opened(images).image_logits, model.eval()(images).image_logits)
