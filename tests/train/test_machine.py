"""What a machine does in its own way does not change what comes of a run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alltokens.errors import UserError
from alltokens.models.factory import create_model
from alltokens.models.timm_model import TimmConfig
from alltokens.models.vit import VisionTransformer
from alltokens.train.machine import Machine
from alltokens.train.trainer import train

from ..kinds import KINDS, images_for
from .test_trainer import assert_same
from .toy_runs import MACHINE, silent, toy_config, toy_data

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("data"), images=16)


@pytest.mark.parametrize("kind", ["ours", "timm"])
def test_what_is_computed_again_is_what_it_was_drop_path_included(data: Path, tmp_path: Path, kind: str):
    config = toy_config(data)
    model = replace(config.model, drop_path=0.5)
    if kind == "timm":
        model = TimmConfig(name="test_vit", classes=3, image_size=(32, 32), drop_path=0.5)
    config = replace(config, model=model)
    train(config, tmp_path / "kept", MACHINE, silent)
    train(config, tmp_path / "again", replace(MACHINE, recompute=True), silent)
    assert_same(tmp_path / "kept", tmp_path / "again")


def test_blocks_are_computed_again_in_the_backward_pass():
    model = replace(MACHINE, recompute=True).place(VisionTransformer(KINDS["lvvit"]), None)
    calls = []
    model.blocks[0].register_forward_pre_hook(lambda *call: calls.append(call))
    model(images_for(KINDS["lvvit"])).image_logits.sum().backward()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "test_resnet",
            "the batch norms of 'timm/test_resnet' would count each batch twice; train it without --recompute",
        ),
        ("convit_tiny", "timm cannot compute parts of 'convit_tiny' again; train it without --recompute"),
    ],
)
def test_models_that_cannot_be_computed_again_are_refused(name: str, sentence: str):
    with torch.device("meta"):
        model = create_model(f"timm/{name}", classes=3)
    with pytest.raises(UserError) as raised:
        replace(MACHINE, recompute=True).place(model, None)
    assert str(raised.value) == sentence


@pytest.mark.parametrize("kind", KINDS)
def test_channels_last_changes_no_answer(kind: str):
    torch.manual_seed(0)
    model = VisionTransformer(KINDS[kind]).double().eval()
    images = images_for(KINDS[kind]).double()
    before = model(images).image_logits
    after = model.to(memory_format=torch.channels_last)(images).image_logits
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


def settings() -> tuple[bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark


def test_deterministic_settings_hold_for_the_run_alone(data: Path, tmp_path: Path):
    before = settings()
    assert before != (True, True, False)
    with replace(MACHINE, deterministic=True).at_work():
        assert settings() == (True, True, False)
    assert settings() == before
    train(toy_config(data), tmp_path / "plain", MACHINE, silent)
    train(toy_config(data), tmp_path / "run", replace(MACHINE, deterministic=True), silent)
    assert settings() == before
    assert_same(tmp_path / "plain", tmp_path / "run")


@pytest.mark.parametrize("value", [None, ":1:1"])
def test_deterministic_training_on_a_gpu_says_what_it_takes(value: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if value is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    with pytest.raises(UserError) as raised, Machine(torch.device("cuda"), 0, deterministic=True).at_work():
        pass
    assert str(raised.value) == (
        "deterministic training on a GPU takes CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment; "
        f"got {value or 'no such variable'}"
    )


def test_memory_is_the_most_that_was_taken():
    before = MACHINE.memory_gib()
    taken = torch.ones(2**26)
    assert MACHINE.memory_gib() >= before
    assert MACHINE.memory_gib() * 2**30 >= taken.nbytes


@pytest.mark.parametrize("saving", [0.0, -1.0])
def test_a_run_that_would_never_save_is_refused(saving: float) -> None:
    with pytest.raises(UserError) as raised:
        Machine(torch.device("cpu"), 0, saving=saving)
    assert str(raised.value) == f"saving must be above 0; got saving={saving:g}"


@pytest.mark.parametrize(
    ("device", "augment", "has_triton", "expected"),
    [
        ("cpu", None, True, "workers"),
        ("cuda", None, True, "device"),
        ("cuda", None, False, "workers"),
        ("cuda", "workers", True, "workers"),
        ("cpu", "device", False, "device"),
    ],
)
def test_a_gpu_with_kernels_augments_unless_told_otherwise(device, augment, has_triton, expected, monkeypatch):
    monkeypatch.setattr("alltokens.augment.boxes.HAS_TRITON", has_triton)
    assert Machine(torch.device(device), 0, augment=augment).augmented_by == expected
