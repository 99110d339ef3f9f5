"""Exported programs and ONNX files answer as the model does, for batches of any size."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from onnxruntime import InferenceSession
from torch import Tensor, nn

from alltokens.cli.main import main
from alltokens.errors import UserError
from alltokens.export import scores
from alltokens.export.onnx import write_onnx
from alltokens.export.scores import Record
from alltokens.export.torch_export import write_torch_export
from alltokens.models.timm_model import TimmClassifier, TimmConfig, timm_config
from alltokens.models.vit import VisionTransformer
from alltokens.models.weights import Model, save_model
from alltokens.models.zoo import find

from ..kinds import KINDS, TINY, images_for, lively

ROOT = Path(__file__).parents[2]


def about(model: nn.Module) -> Record:
    return Record(
        model="tiny",
        image_size=model.config.image_size,
        crop_ratio=0.8,
        interpolation="bicubic",
        mean=(0.1, 0.2, 0.3),
        standard_deviation=(0.4, 0.5, 0.6),
    )


def load_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    session = InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def load_program(path: Path) -> Callable[[Tensor], Tensor]:
    return torch.export.load(path).module()


FORMATS = {"onnx": (write_onnx, load_onnx), "pt2": (write_torch_export, load_program)}


@torch.no_grad()
def classifier(config: TimmConfig) -> TimmClassifier:
    """timm's classifier with heads that tell images apart, and batch norms that have seen some."""
    torch.manual_seed(0)
    model = TimmClassifier(config).train()
    for head in (model.model.get_classifier(), model.token_head):
        head.weight.normal_(0.0, 0.1)
    model(images_for(config, 2))
    return model.eval()


@torch.no_grad()
def compare(model: nn.Module, loaded: Callable[[Tensor], Tensor]) -> None:
    """Scores of batches of 1 and 5 against the model's, within 1e-4 of the largest."""
    for batch in (1, 5):
        images = images_for(model.config, batch, seed=7)
        expected = model.eval()(images).scores(model.config.token_weight)
        found = loaded(images)
        assert found.shape == (batch, model.config.classes)
        assert expected.std() > 0.01
        assert (found - expected).abs().max() <= 1e-4 * max(1.0, expected.abs().max())


# One stands for all outside the slow half, beside those that the other tests export.
FAST = {"lvvit"}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind in FAST else pytest.mark.slow) for kind in KINDS])
def test_every_kind_of_model_answers_the_same_exported(tmp_path, kind, form):
    model, (write, load) = lively(KINDS[kind]), FORMATS[form]
    written = write(model, about(model), tmp_path / f"tiny.{form}")
    compare(model, load(tmp_path / f"tiny.{form}"))
    assert written.difference <= 1e-4
    assert [path.name for path in tmp_path.iterdir()] == [f"tiny.{form}"]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """One tiny model in both formats."""
    folder, model = tmp_path_factory.mktemp("files"), lively(TINY)
    for form, (write, _) in FORMATS.items():
        write(model, about(model), folder / f"tiny.{form}")
    return {form: folder / f"tiny.{form}" for form in FORMATS}


def test_an_onnx_file_names_its_input_output_and_batch(files):
    session = InferenceSession(files["onnx"], providers=["CPUExecutionProvider"])
    described = [(x.name, x.type, x.shape) for x in (*session.get_inputs(), *session.get_outputs())]
    assert described == [
        ("images", "tensor(float)", ["batch", 3, 32, 48]),
        ("scores", "tensor(float)", ["batch", 5]),
    ]


def test_an_onnx_file_says_how_images_are_prepared(files):
    session = InferenceSession(files["onnx"], providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map == {
        "model": "tiny",
        "image_size": "[32, 48]",
        "crop_ratio": "0.8",
        "interpolation": "bicubic",
        "mean": "[0.1, 0.2, 0.3]",
        "standard_deviation": "[0.4, 0.5, 0.6]",
    }


def test_an_onnx_file_holds_its_weights(files):
    tensors = onnx.load(files["onnx"], load_external_data=False).graph.initializer
    assert not any(tensor.external_data for tensor in tensors)
    assert sum(len(tensor.raw_data) for tensor in tensors) > 100_000


def test_a_program_says_how_images_are_prepared(files):
    found = dict.fromkeys(("model", "crop_ratio", "mean"), "")
    torch.export.load(files["pt2"], extra_files=found)
    assert found["model"] == "tiny"
    assert json.loads(found["crop_ratio"]) == 0.8
    assert json.loads(found["mean"]) == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_does_not_say_where_the_code_lies(files, form):
    content = files[form].read_bytes()
    assert str(ROOT).encode() not in content
    assert b"site-packages" not in content


def test_a_loaded_program_asks_for_no_gradients(files):
    assert not load_program(files["pt2"])(images_for(TINY)).requires_grad


@pytest.mark.parametrize("form", FORMATS)
def test_a_cnn_of_timms_answers_the_same_exported_token_head_included(tmp_path, form):
    config = TimmConfig(name="resnet10t", classes=5, image_size=(64, 32), token_weight=0.5)
    model, (write, load) = classifier(config), FORMATS[form]
    write(model, about(model), tmp_path / f"model.{form}")
    compare(model, load(tmp_path / f"model.{form}"))


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_is_left_of_what_answers_differently(tmp_path, monkeypatch, form):
    monkeypatch.setattr(scores, "TOLERANCE", -1.0)
    with pytest.raises(UserError, match=r"^what was exported does not answer as the model does: for a batch of 1 "):
        FORMATS[form][0](lively(TINY), about(lively(TINY)), tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_no_onnx_file_holds_are_refused_before_any_work(tmp_path):
    with torch.device("meta"):
        model = VisionTransformer(replace(find("vit_l"), depth=48))
    with pytest.raises(UserError) as error:
        write_onnx(model, about(model), tmp_path / "x.onnx")
    assert str(error.value) == (
        "the weights of 'tiny' are 2.4 GB, more than the 2 GB that one ONNX file holds; "
        "--format torch-export has no such limit"
    )


@pytest.mark.slow
def test_a_model_that_torch_cannot_write_as_onnx_is_one_sentence(tmp_path):
    model = TimmClassifier(timm_config("hiera_tiny_224"))
    with pytest.raises(UserError) as error:
        write_onnx(model, about(model), tmp_path / "x.onnx")
    assert str(error.value) == (
        "torch cannot write 'tiny' as ONNX (only 4D query, key, and value are supported); --format torch-export may do"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("form", "output", "line"),
    [
        ("onnx", "mine.onnx", 'load it with onnxruntime.InferenceSession("mine.onnx")'),
        ("torch-export", "mine.pt2", 'load it with torch.export.load("mine.pt2").module()'),
    ],
)
def test_the_command_prints_three_lines_and_no_chatter(tmp_path, monkeypatch, capfd, form, output, line):
    monkeypatch.chdir(tmp_path)
    model = lively(KINDS["cait"])
    save_model(model, "mine.safetensors")
    assert main(["export", "mine.safetensors", "--format", form, "--crop-ratio", "0.9"]) == 0
    out, err = capfd.readouterr()
    first, second, third = out.splitlines()
    assert first == f"wrote {output}, {(tmp_path / output).stat().st_size / 1e6:.1f} MB"
    assert second.startswith("largest difference from eager: ")
    assert third == line
    assert err == ""
    compare(model, FORMATS[output.split(".")[1]][1](tmp_path / output))


PUBLISHED = [
    "vit_ti",
    "deit_ti_distilled",
    "lvvit_t",
    "cait_xxs24",
    "vit_s_18x2_ls",
    "vit_b_hmlp_bn",
    "t2t_vit_14",
    "timm/resnest50d",
    "timm/mixer_s16_224",
]


def published(name: str) -> Model:
    """Weights of the published model's size at which every tensor matters and scores are of order one."""
    if name.startswith("timm/"):
        return classifier(timm_config(name.removeprefix("timm/")))
    model = lively(find(name))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.2 if parameter.ndim > 1 else 1.0)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_answers_the_same_exported(tmp_path, name, form):
    model, (write, load) = published(name), FORMATS[form]
    write(model, about(model), tmp_path / f"model.{form}")
    compare(model, load(tmp_path / f"model.{form}"))
