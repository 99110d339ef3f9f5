"""Stems: the grid each gives, and how far each looks."""

from dataclasses import replace

import pytest
import torch

from alltokens.models.config import ConvStem, HMLPStem, LeViTStem, LinearStem, LocalStem, Stem, ViTConfig
from alltokens.models.stems import build_stem, convolution
from alltokens.models.vit import VisionTransformer

from ..kinds import images_for, lively

SMALL = ViTConfig(width=16, depth=1, heads=2, image_size=(48, 64))

TLV1_TABLE_4 = [
    ((7, 8), (2, 8)),
    ((7, 3, 8), (2, 2, 4)),
    ((7, 3, 8), (2, 1, 8)),
    ((7, 3, 3, 8), (2, 1, 1, 8)),
    ((7, 3, 3, 8), (2, 2, 1, 4)),
    ((7, 3, 3, 3, 3, 8), (2, 1, 1, 1, 1, 8)),
]


@pytest.mark.parametrize(("kernels", "strides"), TLV1_TABLE_4)
@pytest.mark.parametrize("size", [(224, 224), (384, 224)])
def test_every_conv_stem_of_the_first_papers_table_4_gives_a_token_a_patch(
    kernels: tuple[int, ...], strides: tuple[int, ...], size: tuple[int, int]
) -> None:
    config = replace(SMALL, stem=ConvStem(kernels=kernels, strides=strides), image_size=size)
    with torch.device("meta"):
        grid = build_stem(config)(torch.empty(1, 3, *size))
    assert grid.shape == (1, size[0] // 16, size[1] // 16, 16)


@pytest.mark.parametrize(
    "stem",
    [
        LinearStem(),
        LinearStem(norm="batch"),
        LinearStem(activation="gelu"),
        LinearStem(norm="batch", activation="gelu"),
        LeViTStem(),
        LeViTStem(norm="layer"),
        LocalStem(),
        HMLPStem(),
        HMLPStem(norm="layer"),
    ],
)
def test_every_stem_of_the_third_papers_table_7_gives_14_by_14_tokens_for_224(stem: Stem) -> None:
    config = replace(SMALL, stem=stem, image_size=(224, 224))
    with torch.device("meta"):
        assert build_stem(config)(torch.empty(1, 3, 224, 224)).shape == (1, 14, 14, 16)


# No symmetric padding keeps the size under an even kernel of stride 1.
POSSIBLE = [(kernel, stride) for kernel in range(1, 10) for stride in (1, 2, 3, 4, 8) if stride > 1 or kernel % 2]


@pytest.mark.parametrize(("kernel", "stride"), POSSIBLE)
def test_a_convolution_divides_the_size_by_its_stride(kernel: int, stride: int) -> None:
    images = torch.empty(1, 1, 24, 48, device="meta")
    with torch.device("meta"):
        assert convolution(1, 1, kernel, stride, bias=False)(images).shape == (1, 1, 24 // stride, 48 // stride)


def tokens_changed_by_one_patch(stem: Stem, row: int, column: int) -> list[tuple[int, int]]:
    """Places of the tokens that move when the pixels of one patch are replaced."""
    config = replace(SMALL, stem=stem)
    model, images, patch = lively(config).eval(), images_for(config, batch=1), stem.patch
    other = images.clone()
    here = slice(row * patch, (row + 1) * patch), slice(column * patch, (column + 1) * patch)
    other[0, :, here[0], here[1]] = images_for(config, batch=1, seed=9)[0, :, here[0], here[1]]
    with torch.no_grad():
        moved = (model.embed(images) - model.embed(other)).abs().amax((0, 3)) > 0
    return [(i, j) for i, j in moved.nonzero().tolist()]


@pytest.mark.parametrize(
    "stem",
    [
        LinearStem(norm="batch", activation="gelu"),
        HMLPStem(),
        HMLPStem(norm="layer"),
        HMLPStem(norm="none"),
        LocalStem(width=16),
        ConvStem(kernels=(4, 4), strides=(4, 4)),
    ],
)
@pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 2), (2, 3)])
def test_a_stem_inside_patches_changes_the_token_of_the_changed_patch_alone(stem: Stem, row: int, column: int) -> None:
    assert tokens_changed_by_one_patch(stem, row, column) == [(row, column)]


@pytest.mark.parametrize("stem", [ConvStem(channels=8), LeViTStem()])
def test_a_stem_of_overlapping_convolutions_changes_neighbours_too(stem: Stem) -> None:
    changed = tokens_changed_by_one_patch(stem, 1, 1)
    assert (1, 1) in changed
    assert len(changed) > 1


def test_masking_a_patch_before_the_hmlp_stem_is_masking_its_token_after_it() -> None:
    config = replace(SMALL, stem=HMLPStem())
    model, images = lively(config).eval(), images_for(config)
    masked = images.clone()
    masked[:, :, 16:32, 32:48] = 0.0
    with torch.no_grad():
        empty = model.embed(torch.zeros_like(images))[:, 1, 2]
        expected = model.embed(images)
        expected[:, 1, 2] = empty
        assert torch.allclose(model.embed(masked), expected, atol=1e-6)


@pytest.mark.parametrize(("norm", "bias"), [("batch", False), ("layer", False), ("none", True)])
def test_convolutions_before_a_norm_have_no_bias_of_their_own(norm: str, bias: bool) -> None:
    layers = [
        layer
        for layer in build_stem(replace(SMALL, stem=ConvStem(channels=4, norm=norm)))
        if isinstance(layer, torch.nn.Conv2d)
    ]
    assert [layer.bias is not None for layer in layers] == [bias, bias, bias, True]


def test_a_stem_without_a_norm_or_an_activation_has_no_layer_for_them() -> None:
    bare = VisionTransformer(replace(SMALL, stem=HMLPStem(norm="none", activation="none"))).stem
    assert len(bare) == 3
