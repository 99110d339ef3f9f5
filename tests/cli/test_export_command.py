"""`alltokens export` writes what it says, or says in one sentence why not; formats that trace are in tests/compile."""

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.data import resolve_model_data_config

from alltokens.cli.export import model_name
from alltokens.cli.main import main
from alltokens.models.convert import to_published
from alltokens.models.usage import Usage
from alltokens.models.weights import CONFIG_KEY, Inside, save_model
from alltokens.models.zoo import find
from alltokens.plain import to_plain

from ..kinds import KINDS, images_for, lively

# A small image makes a published model quick.
VIT = replace(find("vit_ti"), depth=1, image_size=(32, 32), classes=3)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a checkpoint in it."""
    monkeypatch.chdir(tmp_path)
    save_model(lively(VIT), "mine.safetensors")
    return tmp_path


def export(line: str) -> int:
    return main(["export", *line.split()])


def test_a_checkpoint_becomes_a_folder_beside_it_and_three_facts_are_printed(folder, capsys):
    assert export("mine.safetensors --format hub --crop-ratio 0.9") == 0
    out, err = capsys.readouterr()
    first, second, third = out.splitlines()
    assert first == "wrote mine-hub, 2.4 MB"
    assert second.startswith("largest difference from eager: ")
    assert float(second.split()[-1]) < 1e-4
    assert third == 'load it with timm.create_model("local-dir:mine-hub", pretrained=True)'
    assert err == ""
    images = images_for(VIT)
    loaded = timm.create_model("local-dir:mine-hub", pretrained=True).eval()
    expected = lively(VIT).eval()(images).scores()
    torch.testing.assert_close(loaded(images), expected, rtol=1e-4, atol=1e-4)


def test_a_weight_file_is_written_where_the_output_says(folder, capsys):
    (folder / "deep").mkdir()
    assert export("mine.safetensors --format timm --crop-ratio 0.9 --output deep/ours.safetensors") == 0
    assert capsys.readouterr().out.startswith("wrote deep/ours.safetensors, 2.4 MB\n")
    assert [path.name for path in (folder / "deep").iterdir()] == ["ours.safetensors"]


def test_a_name_is_exported_with_fresh_weights_and_that_is_said(folder, capsys):
    assert export("vit_ti --format timm") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "wrote vit_ti.timm.safetensors, 22.9 MB"
    assert lines[2:] == [
        'load it with timm.create_model("vit_tiny_patch16_224", checkpoint_path="vit_ti.timm.safetensors")',
        "its weights are a fresh draw: give the path of a checkpoint for trained ones",
    ]


def test_images_are_prepared_as_a_checkpoint_says(folder):
    usage = Usage(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), crop=0.8, interpolation="bilinear", classes=tuple("abc"))
    save_model(lively(VIT), "trained.safetensors", usage)
    assert export("trained.safetensors --format hub") == 0
    data = resolve_model_data_config(timm.create_model("local-dir:trained-hub"))
    assert (data["mean"], data["std"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    assert (data["crop_pct"], data["interpolation"]) == (0.8, "bilinear")


def test_half_precision_weights_are_exported_in_single(folder):
    save_model(lively(VIT).half(), "half.safetensors")
    assert export("half.safetensors --format hub --crop-ratio 0.9") == 0
    assert timm.create_model("local-dir:half-hub", pretrained=True).head.weight.dtype == torch.float32


def test_a_model_by_name_is_what_a_file_without_a_config_is_of(folder):
    state = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3).state_dict()
    torch.save({"state_dict": state}, "plain.pth.tar")
    assert export("plain.pth.tar --format hub --name deit_ti") == 0
    loaded = timm.create_model("local-dir:plain-hub", pretrained=True)
    assert (loaded.num_classes, loaded.pretrained_cfg["crop_pct"]) == (3, 0.9)


@pytest.mark.parametrize(
    ("source", "is_known", "name"),
    [
        ("lvvit_s", True, "lvvit_s"),
        ("timm/resnet50.a1_in1k", True, "resnet50.a1_in1k"),
        ("runs/best/lvvit_s-26M-224-83.3.pth.tar", False, "lvvit_s-26M-224-83.3"),
        ("mine", False, "mine"),
    ],
)
def test_the_output_is_named_after_the_model(source, is_known, name):
    assert model_name(source, is_known) == name


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "mine.safetensors --format hub",
            "the crop ratio of 'mine' is not known, as its config is no published one; give --crop-ratio",
        ),
        (
            "mine.safetensors --format hub --crop-ratio 2",
            "crop_ratio must be from 0.001 to 1; got crop_ratio=2.0",
        ),
        (
            "mine.safetensors --format onnx --output no/x.onnx",
            "cannot write 'no/x.onnx': 'no' is not a folder; create it first",
        ),
        ("lvit_s --format hub", "'lvit_s' is neither a model nor a file; did you mean lvvit_s, vit_s, lvvit_t?"),
        ("vit_ti --format hub --name vit_s", "--name is for checkpoints, and 'vit_ti' is a model; got --name vit_s"),
        ("no/such.pth --format hub", "there is no weight file 'no/such.pth'"),
        ("odd.safetensors --format timm --crop-ratio 1", "no published layout has sinusoidal positions"),
        (
            "mine.safetensors --format timm --output mine.safetensors",
            "'mine.safetensors' is there already; give --overwrite to replace it or another --output",
        ),
        (
            "mine.safetensors --format torch-export --output full.pt2 --overwrite",
            "--format torch-export writes a file, but 'full.pt2' is a folder; give another --output",
        ),
        ("mine.safetensors --format onnx --output x.pth", "--format onnx writes a .onnx file; got --output x.pth"),
        (
            "mine.safetensors --format timm --output x",
            "--format timm writes a .safetensors file; got --output x",
        ),
        (
            "mine.safetensors --format hub --output mine.safetensors --overwrite",
            "--format hub writes a folder, but 'mine.safetensors' is a file; give another --output",
        ),
        (
            "mine.safetensors --format hub --output full.pt2",
            "'full.pt2' is there already; give --overwrite to replace it or another --output",
        ),
        (
            "mine.safetensors --format hub --output full.pt2 --overwrite",
            "'full.pt2' holds more than an exported model (thesis.tex), so it is not replaced",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_changes_nothing(folder, capsys, line, sentence):
    save_model(lively(KINDS["sinusoidal"]), "odd.safetensors")
    (folder / "full.pt2").mkdir()
    (folder / "full.pt2" / "thesis.tex").write_text("years")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert export(line) == 2
    assert capsys.readouterr() == ("", f"error: {sentence}\n")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("form", "weights"), [("timm", "mine.timm.safetensors"), ("hub", "mine-hub/model.safetensors")]
)
def test_what_is_there_is_replaced_when_told(folder, form, weights):
    assert export(f"mine.safetensors --format {form} --crop-ratio 0.9") == 0
    save_model(lively(VIT, seed=5), "mine.safetensors")
    assert export(f"mine.safetensors --format {form} --crop-ratio 0.9 --overwrite") == 0
    assert lively(VIT, seed=5).head.weight.detach().numpy().tobytes() in (folder / weights).read_bytes()


def test_onnx_without_its_packages_is_one_sentence_before_any_work(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert export("mine.safetensors --format onnx") == 2
    assert capsys.readouterr().err == (
        "error: --format onnx needs onnx, onnxscript and onnxruntime; "
        "install them with: pip install 'alltokens[onnx]'\n"
    )


def test_a_format_that_does_not_exist_ends_with_2_and_the_ones_that_do(folder, capsys):
    with pytest.raises(SystemExit) as end:
        export("mine.safetensors --format tflite")
    assert end.value.code == 2
    assert "torch-export" in capsys.readouterr().err


def test_help_imports_no_onnx():
    script = (
        "import sys; from alltokens.cli.main import main; main(['--help'])\n"
        "try: main(['export', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'onnx', 'onnxruntime', 'onnxscript'}))"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[-1] == "[]"


class Trap:
    """An object whose unpickling leaves a file behind."""

    def __reduce__(self):
        return os.system, ("touch sign",)


def truncate(path):
    path.write_bytes(Path("mine.safetensors").read_bytes()[:-100])


def hide_code(path):
    torch.save({"state_dict": lively(VIT).state_dict(), "args": Trap()}, path)


def put_in_another_config(path):
    metadata = {CONFIG_KEY: json.dumps(to_plain(Inside(replace(VIT, depth=2))))}
    save_file(lively(VIT).state_dict(), path, metadata)


def make_an_archive(path):
    with tarfile.open(path, "w") as archive:
        archive.add("mine.safetensors")


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("bad.safetensors", truncate, "is damaged or no weight file ("),
        ("bad.pth", hide_code, "holds more than tensors (posix.system), which could run code, so it is not read; "),
        ("bad.safetensors", put_in_another_config, "does not hold the model its config describes; the first"),
        ("bad.pth.tar", make_an_archive, "is a tar archive and no weight file; unpack it and give the file inside\n"),
        ("bad", Path.mkdir, "is a folder; give a weight file, such as the model.safetensors in it\n"),
    ],
)
def test_a_bad_file_is_one_sentence_and_runs_nothing(folder, capsys, name, write, words):
    write(folder / name)
    before = sorted(folder.iterdir())
    assert export(f"{name} --format timm") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: '{name}' {words}")
    assert sorted(folder.iterdir()) == before


def test_a_torch_file_is_read_though_it_is_called_a_tar(folder, capsys):
    config = find("vit_ti")
    torch.save({"state_dict": to_published(config, lively(config).state_dict())}, "released.pth.tar")
    assert export("released.pth.tar --format timm --crop-ratio 0.9") == 0
    assert capsys.readouterr().out.startswith("wrote released.timm.safetensors, ")
