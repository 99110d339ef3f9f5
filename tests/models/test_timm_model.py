"""timm's classifiers beside a token head: the image logits stay timm's own, and every token lies where it should."""

import re
from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pytest
import timm
import torch
from timm.layers import DropPath
from timm.models import PretrainedCfg, _registry
from torch import Tensor, nn

from alltokens.errors import UserError
from alltokens.models.prediction import Prediction
from alltokens.models.timm_model import TimmClassifier, TimmConfig, timm_config


class Family(NamedTuple):
    """A model of timm's, and what its documentation and code say of its features."""

    name: str
    size: tuple[int, int]
    grid: tuple[int, int]
    axes: str
    prefix: int = 0
    sized: bool = False
    """Whether timm's constructor takes img_size."""
    own_grid: tuple[int, int] = (7, 7)
    """At the size timm has for the model."""


def maps(name: str, axes: str = "NCHW", **others) -> Family:
    """A feature map, one cell for each 32 x 32 pixels unless said otherwise."""
    return Family(name, axes=axes, **({"size": (96, 160), "grid": (3, 5)} | others))


def tokens(name: str, prefix: int, **others) -> Family:
    """A row of tokens, one for each 16 x 16 pixels unless said otherwise."""
    usual = {"size": (48, 80), "grid": (3, 5), "own_grid": (14, 14), "sized": True}
    return Family(name, axes="NLC", prefix=prefix, **(usual | others))


FAMILIES = [
    maps("resnest50d"),
    maps("resnet18"),
    maps("regnetx_002"),
    maps("efficientnet_b0", size=(192, 320), grid=(6, 10)),
    maps("mobilenetv3_small_050", size=(192, 320), grid=(6, 10)),
    maps("test_nfnet", own_grid=(5, 5)),
    maps("densenet121"),
    maps("test_convnext", own_grid=(5, 5)),
    maps("poolformer_s12"),
    maps("pvt_v2_b0"),
    maps("efficientvit_m0", size=(224, 224), grid=(4, 4), own_grid=(4, 4)),
    maps("test_mambaout", "NHWC", own_grid=(5, 5)),
    maps("swin_tiny_patch4_window7_224", "NHWC", sized=True),
    tokens("mixer_s16_224", 0),
    tokens("mixer_b16_224", 0),
    tokens("resmlp_12_224", 0),
    tokens("test_vit", 1, own_grid=(10, 10)),
    tokens("deit_tiny_distilled_patch16_224", 2),
    tokens("vit_little_patch16_reg4_gap_256", 4, own_grid=(16, 16)),
    tokens("eva02_tiny_patch14_224", 1, size=(42, 70), own_grid=(16, 16)),
    tokens("cait_xxs24_224", 1),
    tokens("xcit_nano_12_p16_224", 1),
    tokens("volo_d1_224", 1),
    tokens("convit_tiny", 1, size=(48, 48), grid=(3, 3)),
]
SLOW_FAMILIES = [
    maps("swinv2_tiny_window8_256", "NHWC", size=(64, 128), grid=(2, 4), sized=True, own_grid=(8, 8)),
    maps("coatnet_nano_rw_224", sized=True),
    maps("dm_nfnet_f0", own_grid=(6, 6)),
    maps("nest_tiny", size=(224, 224), grid=(14, 14), sized=True, own_grid=(14, 14)),
    maps("swinv2_cr_tiny_ns_224", sized=True),
    maps("sequencer2d_s", "NHWC", size=(56, 84), grid=(4, 6), sized=True, own_grid=(16, 16)),
    tokens("mixer_l16_224", 0),
    tokens("hiera_tiny_224", 0, size=(96, 160), own_grid=(7, 7)),
    tokens("twins_svt_small", 0, size=(96, 160), own_grid=(7, 7)),
    tokens("beit_base_patch16_224", 1),
    tokens("deit3_small_patch16_224", 1),
    tokens("tnt_s_patch16_224", 1),
    tokens("naflexvit_base_patch16_gap", 4, own_grid=(24, 24)),
    tokens("mvitv2_tiny", 0, size=(224, 224), grid=(7, 7), own_grid=(7, 7)),
    tokens("efficientformer_l1", 0, size=(224, 224), grid=(7, 7), own_grid=(7, 7), sized=False),
]
PARAMETERS = [
    *(pytest.param(family, id=family.name) for family in FAMILIES),
    *(pytest.param(family, id=family.name, marks=pytest.mark.slow) for family in SLOW_FAMILIES),
]


class Built(NamedTuple):
    """A family's model with our head, and timm's own with the same weights; both in evaluation mode."""

    family: Family
    ours: TimmClassifier
    plain: nn.Module


@pytest.fixture(scope="module", params=PARAMETERS)
def built(request) -> Built:
    family = request.param
    torch.manual_seed(0)
    ours = lively(TimmClassifier(config_of(family.name, family.size))).eval()
    plain = timm.create_model(family.name, num_classes=5, **({"img_size": family.size} if family.sized else {})).eval()
    plain.load_state_dict(ours.model.state_dict())
    return Built(family, ours, plain)


def config_of(name: str, size: tuple[int, int], **others) -> TimmConfig:
    return replace(timm_config(name), classes=5, image_size=size, **others)


@torch.no_grad()
def lively(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with random values for what starts constant: zero heads, gains of 1e-5, norms."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.min() == parameter.max():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0.0, 0.1, generator=generator)
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5, generator=generator)
    return model


def images_of(size: tuple[int, int], batch: int = 2, seed: int = 1) -> Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_image_logits_are_those_of_the_plain_model(built):
    images = images_of(built.family.size)
    logits = built.ours(images).image_logits
    assert logits.isfinite().all()
    assert logits.std() > 0.01
    torch.testing.assert_close(logits, built.plain(images), rtol=0, atol=0)


@torch.no_grad()
def test_token_logits_are_the_token_head_on_each_cell_row_by_row(built):
    family, images = built.family, images_of(built.family.size)
    features = built.plain.forward_features(images)
    weight, bias = built.ours.token_head.weight, built.ours.token_head.bias
    rows, columns = built.ours.grid
    assert (rows, columns) == family.grid
    cells = []
    for row, column in product(range(rows), range(columns)):
        match family.axes:
            case "NCHW":
                cell = features[:, :, row, column]
            case "NHWC":
                cell = features[:, row, column, :]
            case "NLC":
                cell = features[:, family.prefix + row * columns + column, :]
        cells.append(cell @ weight.T + bias)
    torch.testing.assert_close(built.ours(images).token_logits, torch.stack(cells, 1), rtol=1e-4, atol=1e-4)
    sizes = {"NCHW": features.shape[2:], "NHWC": features.shape[1:3], "NLC": [features.shape[1] - family.prefix]}
    assert torch.Size(sizes[family.axes]).numel() == rows * columns


@torch.no_grad()
def test_a_corner_of_the_image_moves_the_token_of_that_corner_more_than_other_corners_do(built):
    (height, width), (rows, columns) = built.family.size, built.family.grid
    high, wide = height // rows, width // columns
    images = images_of(built.family.size, batch=1).repeat(5, 1, 1, 1)
    noise = 3 * images_of(built.family.size, batch=1, seed=2)[0]
    corners = list(product((slice(0, high), slice(-high, None)), (slice(0, wide), slice(-wide, None))))
    for place, (vertical, horizontal) in enumerate(corners, start=1):
        images[place, :, vertical, horizontal] = noise[:, vertical, horizontal]
    token_logits = built.ours(images).token_logits.unflatten(1, (rows, columns))
    moved = (token_logits[1:] - token_logits[0]).norm(dim=3)
    assert moved[:, [0, 0, -1, -1], [0, -1, 0, -1]].argmax(0).tolist() == [0, 1, 2, 3]


def test_training_answers_a_prediction_and_reaches_what_plain_training_does_and_the_token_head(built):
    images = images_of(built.family.size)
    ours, plain = deepcopy(built.ours).train(), deepcopy(built.plain).train()
    prediction = ours(images)
    assert isinstance(prediction, Prediction)
    (prediction.image_logits.square().sum() + prediction.token_logits.square().sum()).backward()
    plain(images).square().sum().backward()
    expected = {f"model.{name}" for name in reached(plain)} | {"token_head.weight", "token_head.bias"}
    assert reached(ours) == expected


def reached(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("family", PARAMETERS)
def test_on_the_meta_device_the_grid_at_timms_own_size_is_known(family):
    with torch.device("meta"):
        model = TimmClassifier(timm_config(family.name))
    assert model.grid == family.own_grid
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("name", ["volo_d1_224", "deit_tiny_distilled_patch16_224"])
@torch.no_grad()
def test_training_neither_mixes_tokens_nor_splits_heads(name):
    model, images = lively(TimmClassifier(config_of(name, (32, 48)))).eval(), images_of((32, 48))
    expected = model(images)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    torch.testing.assert_close(model(images), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_mambaout"])
def test_a_seed_draws_the_weights_it_draws_in_timm(name):
    torch.manual_seed(3)
    plain = timm.create_model(name)
    torch.manual_seed(3)
    state = TimmClassifier(timm_config(name)).model.state_dict()
    assert state.keys() == plain.state_dict().keys()
    assert all(torch.equal(tensor, state[key]) for key, tensor in plain.state_dict().items())


def test_the_token_head_is_drawn_as_our_other_heads():
    head = TimmClassifier(timm_config("test_vit")).token_head
    assert head.weight.shape == (1000, 64)
    assert head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not head.bias.any()


def test_a_token_head_that_is_not_trained_is_not_built():
    model = TimmClassifier(config_of("test_vit", (32, 48), token_head=False))
    assert all(name.startswith("model.") for name in model.state_dict())
    prediction = model(images_of((32, 48)))
    assert prediction.image_logits.shape == (2, 5)
    assert prediction.token_logits is None


def test_other_channel_counts_are_built():
    model = TimmClassifier(config_of("test_resnet", (64, 96), channels=1))
    assert model(torch.zeros(2, 1, 64, 96)).token_logits.shape == (2, 6, 5)


def test_drop_path_reaches_timm():
    assert drop_path_of(TimmClassifier(config_of("test_vit", (32, 48), drop_path=0.3))) == pytest.approx(0.3)


def test_no_drop_path_leaves_timms_own():
    name = "swin_tiny_patch4_window7_224"
    assert (
        drop_path_of(TimmClassifier(timm_config(name))) == drop_path_of(timm.create_model(name)) == pytest.approx(0.1)
    )


def drop_path_of(model: nn.Module) -> float:
    return max(module.drop_prob for module in model.modules() if isinstance(module, DropPath))


@pytest.mark.parametrize(
    ("name", "classes", "size"),
    [
        ("resnest50d", 1000, (224, 224)),
        ("efficientnet_b4", 1000, (320, 320)),
        ("beit_base_patch16_384", 1000, (384, 384)),
        ("resnet50.a1_in1k", 1000, (224, 224)),
        ("beit_base_patch16_224.in22k_ft_in22k", 21841, (224, 224)),
        ("vit_small_patch14_dinov2", 1000, (518, 518)),
    ],
)
def test_a_name_brings_timms_image_size_and_classes(name, classes, size):
    assert timm_config(name) == TimmConfig(name=name, classes=classes, image_size=size)


def refused(sentence: str):
    return pytest.raises(UserError, match=f"^{re.escape(sentence)}$")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("resnest50", "; did you mean resnest50d, resnet50, resnet50t?"),
        ("resnet50.a1_in1K", "; did you mean resnet50.a1_in1k, resnet50d.a1_in1k, resnet50.a1h_in1k?"),
        ("hf-hub:q", ""),
        ("", ""),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(name, suggestion):
    with refused(f"unknown timm model '{name}'{suggestion}"):
        timm_config(name)
    with refused(f"unknown timm model '{name}'{suggestion}"):
        TimmConfig(name=name, image_size=(224, 224))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"classes": 0}, "classes must be above 0; got classes=0"),
        ({"channels": 0}, "channels must be above 0; got channels=0"),
        ({"image_size": (0, 32)}, "image_size must be above 0; got image_size=(0, 32)"),
        ({"drop_path": 1.0}, "drop_path must be at least 0 and below 1; got drop_path=1.0"),
        ({"token_weight": -1.0}, "token_weight must be at least 0; got token_weight=-1.0"),
        (
            {"token_weight": 0.5, "token_head": False},
            "token_weight needs a token head; got token_weight=0.5, token_head=False",
        ),
    ],
)
def test_impossible_values_are_refused(fields, sentence):
    with refused(sentence):
        replace(timm_config("test_vit"), **fields)


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("nest_tiny", (224, 448), "Model only handles square inputs; its own size is 3 x 224 x 224"),
        ("mvitv2_tiny", (64, 96), "AssertionError; its own size is 3 x 224 x 224"),
    ],
)
def test_a_size_on_which_timm_fails_is_refused_with_timms_reason(name, size, reason):
    with refused(f"timm model '{name}' failed on a trial image of 3 x {size[0]} x {size[1]}: {reason}"):
        TimmClassifier(replace(timm_config(name), image_size=size))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("convit_tiny", (32, 48)),
        ("efficientformer_l1", (192, 224)),
        ("levit_128s", (100, 100)),
        ("hiera_tiny_224", (100, 100)),
        ("inception_v3", (64, 64)),
    ],
)
def test_a_size_that_a_model_does_not_take_is_one_sentence(name, size):
    start = f"timm model '{name}' failed on a trial image of 3 x {size[0]} x {size[1]}: "
    own = timm_config(name).image_size
    with pytest.raises(UserError, match=f"^{re.escape(start)}[^\n]+; its own size is 3 x {own[0]} x {own[1]}$"):
        TimmClassifier(replace(timm_config(name), image_size=size))


@pytest.mark.parametrize(
    ("name", "size", "features"),
    [
        pytest.param("pit_ti_224", (224, 224), "1 x 1 x 256", id="the class token alone"),
        pytest.param("crossvit_9_240", (240, 240), "1 x 401 x 128 and 1 x 197 x 256", id="two rows of tokens"),
    ],
)
def test_features_without_a_known_grid_are_refused(name, size, features):
    sentence = f"timm model '{name}' takes no token head: for one image of 3 x {size[0]} x {size[1]} its features are "
    with refused(f"{sentence}{features} and its logits 1 x 1000; a map, or tokens with a known grid, would be right"):
        TimmClassifier(timm_config(name))


@pytest.mark.parametrize("name", ["densenet121", "vgg11"])
def test_drop_path_is_refused_where_timm_has_none(name):
    with refused(f"timm model '{name}' takes no drop path rate; got drop_path=0.1, leave it at 0"):
        TimmClassifier(replace(timm_config(name), drop_path=0.1))


def test_an_output_stride_that_a_model_does_not_take_is_refused():
    with refused("timm model 'vit_tiny_patch16_224' takes no output stride; got output_stride=8, leave it at None"):
        TimmClassifier(TimmConfig(name="vit_tiny_patch16_224", image_size=(224, 224), output_stride=8))


def test_images_of_another_size_are_refused():
    model = TimmClassifier(config_of("test_resnet", (64, 96)))
    with refused("images must be 3 x 64 x 96 (channels x height x width) for this model; got 3 x 96 x 64"):
        model(images_of((96, 64)))


class Toy(nn.Module):
    """A classifier of 16 x 16 patches that does not keep timm's contract."""

    num_features = 4

    def __init__(self, without: str) -> None:
        super().__init__()
        self.without = without
        self.patches = nn.Conv2d(3, 8 if without == "its channels" else 4, 16, 16)
        self.head = nn.Linear(self.patches.out_channels, 5)
        if without != "features":
            self.forward_features = self.rows if without == "a grid" else self.patches

    def rows(self, images: Tensor) -> Tensor:
        return self.patches(images).flatten(2).transpose(1, 2)

    def forward_head(self, features: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        logits = self.head(features.mean(1 if self.without == "a grid" else (2, 3)))
        return (logits, logits) if self.without == "one answer" else logits


@pytest.mark.parametrize(
    ("without", "sentence"),
    [
        ("features", "failed on a trial image of 3 x 32 x 48: 'Toy' object has no attribute 'forward_features'"),
        (
            "a grid",
            "takes no token head: for one image of 3 x 32 x 48 its features are 1 x 6 x 4 and its logits 1 x 5; "
            "a map, or tokens with a known grid, would be right",
        ),
        (
            "its channels",
            "takes no token head: for one image of 3 x 32 x 48 its features are 1 x 8 x 2 x 3 and its logits 1 x 5; "
            "a map, or tokens with a known grid, would be right",
        ),
        (
            "one answer",
            "takes no token head: for one image of 3 x 32 x 48 its features are 1 x 4 x 2 x 3 and its logits 1 x 5 "
            "and 1 x 5; a map, or tokens with a known grid, would be right",
        ),
    ],
)
def test_a_model_outside_timms_contract_is_refused(without, sentence, monkeypatch):
    monkeypatch.setitem(_registry._model_entrypoints, "toy", lambda **_: Toy(without))
    monkeypatch.setitem(_registry._model_pretrained_cfgs, "toy", PretrainedCfg(input_size=(3, 32, 48), num_classes=5))
    with refused(f"timm model 'toy' {sentence}"):
        TimmClassifier(timm_config("toy"))
