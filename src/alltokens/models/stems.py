"""How pixels become a grid of tokens."""

from itertools import pairwise

import torch
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn

from alltokens.models.block import Block
from alltokens.models.config import (
    Activation,
    ConvStem,
    HMLPStem,
    LayerNorm,
    LeViTStem,
    LinearStem,
    LocalStem,
    StemNorm,
    T2TStem,
    ViTConfig,
)
from alltokens.models.convolution import convolution
from alltokens.models.norms import TokenNorm
from alltokens.models.t2t import TokensToToken
from alltokens.shapes import Float


def build_stem(config: ViTConfig) -> nn.Module:
    """The module that maps images [b, c, H, W] to a grid [b, h, w, d]."""
    if isinstance(config.stem, LocalStem):
        return LocalTransformer(config, config.stem)
    if isinstance(config.stem, T2TStem):
        return TokensToToken(config, config.stem)
    return Convolutions(*convolutions(config))


class Convolutions(nn.Sequential):
    """Convolutions with norms and activations; the answer has its channels last."""

    def forward(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b h w d"]:
        return super().forward(images).permute(0, 2, 3, 1)


def convolutions(config: ViTConfig) -> list[nn.Module]:
    """The layers of every stem that is a chain of convolutions."""
    stem, width, channels = config.stem, config.width, config.channels
    match stem:
        case LinearStem(patch=patch):
            projection = nn.Conv2d(channels, width, patch, patch)
            return [projection, *norm(stem.norm, width), *activation(stem.activation)]
        case ConvStem():
            inner = [channels] + [stem.channels] * (len(stem.kernels) - 1)
            chain = chained(inner, stem.kernels[:-1], stem.strides[:-1], stem.norm, stem.activation)
            return [*chain, convolution(inner[-1], width, stem.kernels[-1], stem.strides[-1], bias=True)]
        case HMLPStem():
            sizes = [channels, width // 4, width // 4, width]
            # The paper's own listing keeps the bias before the norm.
            chain = chained(sizes, (4, 2, 2), (4, 2, 2), stem.norm, stem.activation, bias=True)
        case LeViTStem():
            sizes = [channels, width // 8, width // 4, width // 2, width]
            chain = chained(sizes, (3,) * 4, (2,) * 4, stem.norm, stem.activation)
        case LocalStem() | T2TStem():
            raise AssertionError(f"{stem} is no chain of convolutions")
    return chain[: len(chain) - len(activation(stem.activation))]


def chained(
    sizes: list[int],
    kernels: tuple[int, ...],
    strides: tuple[int, ...],
    norm_kind: StemNorm,
    activation_kind: Activation,
    bias: bool = False,
) -> list[nn.Module]:
    """Convolution, norm and activation for each step of the sizes."""
    layers: list[nn.Module] = []
    for (before, after), kernel, stride in zip(pairwise(sizes), kernels, strides, strict=True):
        layers.append(convolution(before, after, kernel, stride, bias=bias or norm_kind == "none"))
        layers += [*norm(norm_kind, after), *activation(activation_kind)]
    return layers


def norm(kind: StemNorm, channels: int) -> list[nn.Module]:
    """The norm as a list of at most one layer."""
    kinds: dict[StemNorm, list[type[nn.Module]]] = {"batch": [nn.BatchNorm2d], "layer": [LayerNorm2d], "none": []}
    return [layer(channels) for layer in kinds[kind]]


def activation(kind: Activation) -> list[nn.Module]:
    """The activation as a list of at most one layer."""
    kinds: dict[Activation, list[nn.Module]] = {"relu": [nn.ReLU()], "gelu": [nn.GELU()], "none": []}
    return kinds[kind]


class LocalTransformer(nn.Module):
    """A small transformer over the sub-patches of each patch, then one linear map of the patch."""

    def __init__(self, config: ViTConfig, stem: LocalStem) -> None:
        super().__init__()
        self.patch, self.side = stem.patch, stem.patch // stem.subpatch
        self.subpatches = nn.Conv2d(config.channels, stem.width, stem.subpatch, stem.subpatch)
        self.positions = nn.Parameter(torch.empty(self.side**2, stem.width))
        inside = ViTConfig(width=stem.width, depth=stem.depth, heads=stem.heads)
        self.blocks = nn.ModuleList(Block(inside, drop_path=0.0) for _ in range(stem.depth))
        self.norm = TokenNorm(LayerNorm(), stem.width)
        self.projection = nn.Linear(self.side**2 * stem.width, config.width)

    def forward(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b h w d"]:
        side, b = self.side, images.shape[0]
        h, w = images.shape[2] // self.patch, images.shape[3] // self.patch
        x = self.subpatches(images).unflatten(3, (w, side)).unflatten(2, (h, side))
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(b * h * w, side * side, -1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.projection(self.norm(x).reshape(b, h, w, -1))
