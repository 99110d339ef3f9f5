"""The tokens-to-token stem against loops over windows and tokens, its performer against the dense kernel."""

from dataclasses import replace
from math import exp, sqrt

import numpy as np
import pytest
import timm
import torch
from torch import Tensor

from alltokens.errors import UserError
from alltokens.models.config import LayerNorm, T2TStem, ViTConfig
from alltokens.models.counts import count
from alltokens.models.initialize import initialize, initialize_own
from alltokens.models.resize import set_channels
from alltokens.models.stems import build_stem
from alltokens.models.t2t import Performer, TokenModule, soft_split
from alltokens.models.timm_contract import pretrained_cfg
from alltokens.models.vit import VisionTransformer
from alltokens.models.zoo import find

from ..kinds import images_for, lively
from .brute_force_blocks import Array, Tokens, Weights, attention, gelu, linear, norm

PERFORMER = ViTConfig(
    width=8, depth=1, heads=2, stem=T2TStem(width=6, features=5), image_size=(16, 32), channels=2, classes=3
)
TRANSFORMER = replace(PERFORMER, stem=T2TStem(attention="transformer", width=6))
BOTH = pytest.mark.parametrize("config", [PERFORMER, TRANSFORMER], ids=["performer", "transformer"])
NORM = LayerNorm(eps=1e-5)


# The definition in loops


def windows(image: Array, kernel: int, stride: int, padding: int) -> list[list[Array]]:
    """What lies under the kernel at each place, channel by channel, row by row, with zeros outside the image."""
    channels, height, width = image.shape

    def pixel(channel: int, i: int, j: int) -> float:
        return image[channel, i, j] if 0 <= i < height and 0 <= j < width else 0.0

    return [
        [
            np.array(
                [
                    pixel(channel, top + i, left + j)
                    for channel in range(channels)
                    for i in range(kernel)
                    for j in range(kernel)
                ]
            )
            for left in range(-padding, width + padding - kernel + 1, stride)
        ]
        for top in range(-padding, height + padding - kernel + 1, stride)
    ]


def kernel_attention(directions: Array, queries: Tokens, keys: Tokens, values: Tokens) -> Tokens:
    """Rows of the full matrix phi(q) phi(k), divided by their sums, times the values."""

    def phi(x: Array) -> Array:
        return np.array([exp(w @ x - x @ x / 2) / sqrt(len(directions)) for w in directions])

    answers = []
    for q in queries:
        row = [phi(q) @ phi(k) for k in keys]
        answers.append(sum(weight * v for weight, v in zip(row, values, strict=True)) / (sum(row) + 1e-8))
    return answers


def token_module(weights: Weights, tokens: Tokens) -> Tokens:
    """v + W attention(LN(x)) = y, then y + MLP(LN(y))."""
    normal = [norm(NORM, weights.under("norm"), x) for x in tokens]
    queries, keys, values = zip(*(np.split(linear(weights.under("input"), x), 3) for x in normal), strict=True)
    directions = weights.find("performer.directions")
    mixed = (
        attention(1, queries, keys, values)
        if directions is None
        else kernel_attention(directions, queries, keys, values)
    )
    answers, mlp = [], weights.under("mlp")
    for v, x in zip(values, mixed, strict=True):
        y = v + linear(weights.under("output"), x)
        hidden = gelu(linear(mlp.under("input"), norm(NORM, mlp.under("norm"), y)))
        answers.append(y + mlp["output.weight"] @ hidden + mlp["output_bias"])
    return answers


def stem(weights: Weights, image: Array) -> Array:
    """Split, mix, lay out as an image; again; then split and project."""
    for place, split in enumerate(((7, 4, 2), (3, 2, 1))):
        rows = windows(image, *split)
        tokens = token_module(weights.under(f"stages.{place}"), [x for row in rows for x in row])
        image = np.array(tokens).reshape(len(rows), len(rows[0]), -1).transpose(2, 0, 1)
    return np.array([[linear(weights.under("projection"), x) for x in row] for row in windows(image, 3, 2, 1)])


def weights_of(module: torch.nn.Module) -> Weights:
    return Weights({name: tensor.double().numpy() for name, tensor in module.state_dict().items()})


# Against the definition


@pytest.mark.parametrize("split", [(7, 4, 2), (3, 2, 1)])
@pytest.mark.parametrize("size", [(8, 12), (16, 4), (7, 9)])
def test_a_soft_split_is_every_window_as_one_token(split: tuple[int, int, int], size: tuple[int, int]) -> None:
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = np.array([windows(image, *split) for image in images.numpy()])
    assert np.array_equal(soft_split(images, *split).numpy(), expected)


@BOTH
@torch.no_grad()
def test_a_token_module_answers_as_its_definition_says(config: ViTConfig) -> None:
    module = lively(config).double().stem.stages[1]
    tokens = torch.randn(2, 7, 54, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = [token_module(weights_of(module), list(image)) for image in tokens.numpy()]
    np.testing.assert_allclose(module(tokens).numpy(), np.array(expected), rtol=0, atol=1e-12)


@BOTH
@torch.no_grad()
def test_the_stem_answers_as_its_definition_says(config: ViTConfig) -> None:
    model, images = lively(config).double(), images_for(config).double()
    expected = np.array([stem(weights_of(model.stem), image) for image in images.numpy()])
    assert expected.shape == (2, 1, 2, 8)
    np.testing.assert_allclose(model.embed(images).numpy(), expected, rtol=0, atol=1e-11)


def drawn_performer(width: int, features: int) -> Performer:
    torch.manual_seed(0)
    performer = Performer(width, features)
    initialize_own(performer)
    return performer


def queries_keys_values(width: int) -> Tensor:
    return torch.randn(3, 2, 9, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("width", "features"), [(64, 32), (8, 20), (3, 1)])
@torch.no_grad()
def test_a_performer_is_its_dense_kernel_with_rows_that_sum_to_one(width: int, features: int) -> None:
    performer, (q, k, v) = drawn_performer(width, features).double(), queries_keys_values(width) * 0.3
    directions = performer.directions
    phi_q, phi_k = (
        torch.exp(torch.einsum("md,bnd->bnm", directions, x) - x.norm(dim=2)[..., None] ** 2 / 2) / sqrt(features)
        for x in (q, k)
    )
    kernel = torch.einsum("bim,bjm->bij", phi_q, phi_k)
    expected = kernel / (kernel.sum(2, keepdim=True) + 1e-8) @ v
    torch.testing.assert_close(performer(q, k, v), expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_with_many_features_a_performer_nears_softmax_attention_of_scale_one() -> None:
    performer, (q, k, v) = drawn_performer(8, 2**15).double(), queries_keys_values(8)
    # The kernel of m features has relative variance (e^(|q + k|^2) - 1) / m: 0.018^2 at most for vectors this short.
    q, k = 0.2 * q, 0.2 * k
    answer = performer(q, k, v)

    def distance(scale: float) -> float:
        return float(((q @ k.transpose(1, 2) * scale).softmax(2) @ v - answer).abs().max())

    assert distance(1.0) < 0.02
    # An even average, half or twice the scale, or that of ordinary attention is farther.
    assert min(map(distance, (0.0, 0.5, 2.0, 8**-0.5))) > 0.1


def test_an_answer_is_nothing_where_every_feature_is_below_eps() -> None:
    performer, far = drawn_performer(64, 32), torch.full((1, 5, 64), 4.0)
    assert not performer(far, far, torch.ones(1, 5, 64)).any()


# Types


@torch.no_grad()
def test_features_beyond_float16_are_computed_in_float32_under_autocast() -> None:
    performer = drawn_performer(64, 32)
    near = (performer.directions + 0.1 * torch.randn(32, 64, generator=torch.Generator().manual_seed(2)))[None].half()
    values = torch.randn(1, 32, 64, generator=torch.Generator().manual_seed(3)).half()
    assert performer.features(near.double()).max() > torch.finfo(torch.float16).max
    with torch.autocast("cpu", torch.float16):
        found = performer(near, near, values)
    assert found.dtype == torch.float16
    exact = performer.double()(near.double(), near.double(), values.double())
    torch.testing.assert_close(found.double(), exact, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("attention", ["performer", "transformer"])
def test_values_and_gradients_stay_finite_under_bfloat16_autocast(attention: str) -> None:
    torch.manual_seed(0)
    config = replace(PERFORMER, stem=T2TStem(attention=attention), image_size=(64, 32))
    model = VisionTransformer(config)
    # Pixels of any scale leave the first norm alike.
    for scale in (1.0, 1000.0):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(scale * images_for(config)).image_logits
        logits.float().square().sum().backward()
        assert logits.isfinite().all()
        assert all(x.grad is not None and x.grad.isfinite().all() for x in model.stem.parameters())


# Sizes


@pytest.mark.parametrize("attention", ["performer", "transformer"])
@pytest.mark.parametrize("size", [(16, 16), (48, 32), (16, 96), (224, 384)])
def test_the_stem_gives_a_token_a_patch_of_any_rectangle(attention: str, size: tuple[int, int]) -> None:
    config = replace(PERFORMER, stem=T2TStem(attention=attention), image_size=size)
    with torch.device("meta"):
        assert build_stem(config)(torch.empty(2, 2, *size)).shape == (2, size[0] // 16, size[1] // 16, 8)


@pytest.mark.parametrize(
    ("name", "millions", "billions"),
    [
        ("t2t_vit_14", 21.5, 4.8),
        ("t2t_vit_19", 39.2, 8.5),
        ("t2t_vit_24", 64.1, 13.7),
        ("t2t_vit_t_14", 21.5, 6.1),
        ("t2t_vit_t_19", 39.2, 9.8),
        ("t2t_vit_t_24", 64.1, 15.0),
    ],
)
def test_parameters_and_flops_are_within_two_percent_of_the_published(
    name: str, millions: float, billions: float
) -> None:
    counts = count(find(name))
    assert counts.parameters / 1e6 == pytest.approx(millions, rel=0.02)
    assert counts.flops / 1e9 == pytest.approx(billions, rel=0.02)


def test_directions_are_32_unless_told_and_no_parameters() -> None:
    stem = build_stem(replace(PERFORMER, stem=T2TStem()))
    buffers = {name: tuple(tensor.shape) for name, tensor in stem.named_buffers()}
    assert buffers == {f"stages.{place}.performer.directions": (32, 64) for place in (0, 1)}
    assert buffers.keys() <= stem.state_dict().keys()
    told = build_stem(PERFORMER)
    assert {tuple(tensor.shape) for tensor in told.buffers()} == {(5, 6)}


def test_only_a_performer_has_a_bias_on_queries_keys_and_values() -> None:
    biases = {
        config.stem.attention: [module.input.bias is not None for module in build_stem(config).stages]
        for config in (PERFORMER, TRANSFORMER)
    }
    assert biases == {"performer": [True, True], "transformer": [False, False]}


# First values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_directions_start_orthogonal_with_the_length_of_their_number(dtype: torch.dtype) -> None:
    directions = drawn_performer(64, 32).directions
    torch.testing.assert_close(directions @ directions.T, 32 * torch.eye(32), rtol=0, atol=1e-4)
    torch.manual_seed(0)
    rounded = Performer(64, 32).to(dtype)
    initialize_own(rounded)
    assert torch.equal(rounded.directions, directions.to(dtype))


@BOTH
def test_the_stem_builds_on_the_meta_device_and_starts_off_it(config: ViTConfig) -> None:
    with torch.device("meta"):
        model = VisionTransformer(config)
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    model, built = model.to_empty(device="cpu"), VisionTransformer(config)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(float("nan"))
    for each in (model, built):
        torch.manual_seed(0)
        initialize(each, config)
    for name, tensor in built.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


@torch.no_grad()
def test_linear_layers_of_the_stem_start_truncated_normal_with_zero_biases() -> None:
    torch.manual_seed(0)
    stem = VisionTransformer(replace(PERFORMER, stem=T2TStem())).stem
    linears = {name: module for name, module in stem.named_modules() if isinstance(module, torch.nn.Linear)}
    assert len(linears) == 9
    for name, module in linears.items():
        assert module.weight.std().item() == pytest.approx(0.02, rel=0.1), name
        assert module.bias is None or not module.bias.any(), name
    assert all((module.norm.weight == 1).all() for module in stem.modules() if isinstance(module, TokenModule))


# What is refused


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"width": 0}, "stem.width must be above 0; got stem.width=0"),
        ({"features": 0}, "stem.features must be above 0; got stem.features=0"),
        (
            {"attention": "transformer", "features": 16},
            "stem.features has no effect with stem.attention=transformer; got stem.features=16, set it to None",
        ),
    ],
)
def test_a_wrong_stem_is_answered_with_its_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        T2TStem(**fields)
    assert str(error.value) == sentence


@BOTH
def test_the_channels_of_a_built_stem_cannot_be_changed(config: ViTConfig) -> None:
    config = replace(config, channels=3)
    model = lively(config)
    with pytest.raises(UserError) as error:
        set_channels(model, 1)
    assert str(error.value) == (
        "the channels of a T2T stem cannot be changed, because it normalises windows over all of them before its "
        "first layer; build the model with channels=1"
    )
    assert model.config == config
    assert model(images_for(config)).image_logits.shape == (2, 3)


@torch.no_grad()
def test_timm_builds_the_model_for_other_channels_and_finds_no_first_convolution_to_adapt() -> None:
    model = timm.create_model("t2t_vit_t_14", in_chans=1, num_classes=4, img_size=(32, 48)).eval()
    assert model(torch.zeros(2, 1, 32, 48)).shape == (2, 4)
    assert pretrained_cfg("t2t_vit_t_14", find("t2t_vit_t_14"))["first_conv"] is None
    assert timm.get_pretrained_cfg("t2t_vit_t_14").first_conv is None
