"""A vision transformer in loops over images, tokens and pixels, as the papers' equations read."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, sin

import numpy as np
from torch import Tensor

from alltokens.models.config import ConvStem, HMLPStem, LayerNorm, LeViTStem, LinearStem, LocalStem, NoNorm, ViTConfig

from .brute_force_blocks import Array, Tokens, Weights, block, class_block, gelu, linear, norm

STEM_NORM_EPS = {"batch": 1e-5, "layer": 1e-6}


@dataclass(frozen=True)
class Logits:
    """What the heads answer to a batch."""

    image: Array
    token: Array | None
    distillation: Array | None


def predict(config: ViTConfig, state: Mapping[str, Tensor], images: Tensor) -> Logits:
    """All logits of a batch, one image after the other."""
    weights = Weights({name: tensor.detach().double().numpy() for name, tensor in state.items()})
    answers = [predict_image(config, weights, image) for image in images.detach().double().numpy()]
    image, token, distillation = ([answer[head] for answer in answers] for head in range(3))
    return Logits(
        np.stack(image),
        np.stack(token) if config.token_head else None,
        np.stack(distillation) if config.distillation_token else None,
    )


def predict_image(config: ViTConfig, weights: Weights, image: Array) -> tuple[Array, Array | None, Array | None]:
    """Image, token and distillation logits of one image."""
    class_tokens, tokens = encode(config, weights, embed(config, weights.under("stem"), image))
    final = config.norm if config.norm_position == "pre" else NoNorm()
    class_tokens = [norm(final, weights.under("norm"), x) for x in class_tokens]
    tokens = [norm(final, weights.under("norm"), x) for x in tokens]
    seen = class_tokens[0] if class_tokens else sum(tokens) / len(tokens)
    return (
        linear(weights.under("head"), seen),
        np.stack([linear(weights.under("token_head"), x) for x in tokens]) if config.token_head else None,
        linear(weights.under("distillation_head"), class_tokens[1]) if config.distillation_token else None,
    )


def encode(config: ViTConfig, weights: Weights, tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Class tokens and grid tokens after the trunk and class attention."""
    count = 0 if config.class_token_at is None else 1 + config.distillation_token
    waiting = [weights["class_tokens"][place] for place in range(count)]
    placed = count if config.class_position and config.positions != "relative" else 0
    tokens = [x + position(config, weights, placed + place) for place, x in enumerate(tokens)]
    waiting = [x + position(config, weights, place) if placed else x for place, x in enumerate(waiting)]
    joined: Tokens = []
    for depth in range(config.depth):
        if depth == config.class_token_at:
            joined = waiting
        mixed = block(config, weights.under(f"blocks.{depth}"), joined + tokens, len(joined))
        joined, tokens = mixed[: len(joined)], mixed[len(joined) :]
    if config.class_attention is None:
        return joined, tokens
    for depth in range(config.class_attention.depth):
        waiting = class_block(config, weights.under(f"class_blocks.{depth}"), waiting, tokens)
    return waiting, tokens


# Positions


def position(config: ViTConfig, weights: Weights, place: int) -> Array:
    """What is added to the token at this place."""
    match config.positions:
        case "learned":
            return weights["positions.table"][place]
        case "sinusoidal":
            return sinusoid(place, config.width)
    return np.zeros(config.width)


def sinusoid(place: int, width: int) -> Array:
    """Channel 2i is sin(place / 10000^(2i / width)), channel 2i + 1 its cosine."""
    return np.array(
        [(cos if channel % 2 else sin)(place / 10000 ** ((channel - channel % 2) / width)) for channel in range(width)]
    )


# Stems


def embed(config: ViTConfig, weights: Weights, image: Array) -> Tokens:
    """One image [channels, height, width] as tokens, row by row."""
    match config.stem:
        case HMLPStem():
            return [hmlp_patch(config.stem, weights, patch) for patch in cut(image, 16)]
        case LocalStem():
            return [local_patch(config.stem, weights, patch) for patch in cut(image, config.stem.patch)]
        case LinearStem(patch=patch):
            kernels, strides = (patch,), (patch,)
        case ConvStem():
            kernels, strides = config.stem.kernels, config.stem.strides
        case LeViTStem():
            kernels, strides = (3, 3, 3, 3), (2, 2, 2, 2)
    for step, (kernel, stride) in enumerate(zip(kernels, strides, strict=True)):
        places = convolve(weights.under(str(layer(config.stem, step))), image, kernel, stride)
        places = [[finished(config.stem, weights, step, len(kernels), x) for x in row] for row in places]
        image = np.array(places).transpose(2, 0, 1)
    return [x for row in places for x in row]


def convolve(weights: Weights, image: Array, kernel: int, stride: int) -> list[list[Array]]:
    """The channels at each place of a convolution with the least padding that divides the sides by the stride."""
    sides = image.shape[1:]
    padding = next(
        p for p in range(kernel) if all((side + 2 * p - kernel) // stride + 1 == side // stride for side in sides)
    )
    image = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    rows, columns = (range(0, side // stride * stride, stride) for side in sides)
    weight, bias = weights["weight"], weights.find("bias")
    return [
        [
            (weight * image[:, i : i + kernel, j : j + kernel]).sum((1, 2, 3)) + (0.0 if bias is None else bias)
            for j in columns
        ]
        for i in rows
    ]


def cut(image: Array, size: int) -> list[Array]:
    """Square patches, row by row."""
    rows, columns = (range(0, side, size) for side in image.shape[1:])
    return [image[:, i : i + size, j : j + size] for i in rows for j in columns]


def layer(stem: LinearStem | ConvStem | HMLPStem | LeViTStem, step: int) -> int:
    """The number of a step's projection where norms and activations are numbered too."""
    return step * (1 + (stem.norm != "none") + (stem.activation != "none"))


def finished(
    stem: LinearStem | ConvStem | HMLPStem | LeViTStem, weights: Weights, step: int, steps: int, x: Array
) -> Array:
    """Norm and activation after a step: a conv stem ends with neither, hMLP and LeViT end with the norm."""
    last = step == steps - 1
    if last and isinstance(stem, ConvStem):
        return x
    if stem.norm != "none":
        x = stem_norm(stem.norm, weights.under(str(layer(stem, step) + 1)), x)
    if last and not isinstance(stem, LinearStem):
        return x
    return {"none": lambda x: x, "relu": lambda x: x * (x > 0), "gelu": gelu}[stem.activation](x)


def stem_norm(kind: str, weights: Weights, x: Array) -> Array:
    """Batch norm in evaluation, or layer norm of one place's channels."""
    batch = kind == "batch"
    mean, variance = (weights["running_mean"], weights["running_var"]) if batch else (x.mean(), x.var())
    return (x - mean) / np.sqrt(variance + STEM_NORM_EPS[kind]) * weights["weight"] + weights["bias"]


def hmlp_patch(stem: HMLPStem, weights: Weights, patch: Array) -> Array:
    """4 x 4 sub-patches merged two by two, twice (3T, Figure 5)."""
    first = weights.under("0")
    cells = {}
    for i in range(4):
        for j in range(4):
            pixels = patch[:, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].flatten()
            x = first["weight"].reshape(-1, len(pixels)) @ pixels + first["bias"]
            cells[i, j] = finished(stem, weights, 0, 3, x)
    for step, side in ((1, 2), (2, 1)):
        here, merged = weights.under(str(layer(stem, step))), {}
        for i in range(side):
            for j in range(side):
                corners = [(a, b) for a in range(2) for b in range(2)]
                x = sum(here["weight"][:, :, a, b] @ cells[2 * i + a, 2 * j + b] for a, b in corners) + here["bias"]
                merged[i, j] = finished(stem, weights, step, 3, x)
        cells = merged
    return cells[0, 0]


def local_patch(stem: LocalStem, weights: Weights, patch: Array) -> Array:
    """A transformer over the patch's sub-patches, then one linear map of all of them."""
    first = weights.under("subpatches")
    pixels = [x.flatten() for x in cut(patch, stem.subpatch)]
    tokens = [first["weight"].reshape(stem.width, -1) @ x + first["bias"] for x in pixels]
    tokens = [x + place for x, place in zip(tokens, weights["positions"], strict=True)]
    inside = ViTConfig(width=stem.width, depth=stem.depth, heads=stem.heads)
    for depth in range(stem.depth):
        tokens = block(inside, weights.under(f"blocks.{depth}"), tokens, 0)
    normal = [norm(LayerNorm(eps=1e-6), weights.under("norm"), x) for x in tokens]
    return linear(weights.under("projection"), np.concatenate(normal))
