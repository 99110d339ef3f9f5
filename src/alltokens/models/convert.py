"""Weights in published layouts (timm's ViT, DeiT, CaiT and parallel models, released LV-ViT) as ours, and back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from alltokens.errors import UserError
from alltokens.models.config import ConvStem, LayerNorm, LayerScale, LinearStem, Plain, Scaled, ViTConfig

Join = Literal["rows", "columns", "parts"]
Gains = Literal["ls1.gamma", "gamma_1"]
"""What LayerScale is called: timm's name in a ViT, or the one of CaiT and of DeiT III as released."""

HEADS = {"head": "head", "token_head": "aux_head", "distillation_head": "head_dist"}
"""Our heads and their published names."""


@dataclass(frozen=True)
class Entry:
    """One of our tensors, the published ones it is made of, and how they lie in it."""

    ours: str
    theirs: tuple[str, ...]
    join: Join = "rows"
    batched: bool = False
    """Tokens and positions are published as [1, n, d]."""


def from_published(config: ViTConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A published state dict as ours, with whichever heads it has."""
    layout = entries(config, gains_of(state))
    return {
        entry.ours: joined(entry, [state[key] for key in entry.theirs])
        for entry in layout
        if entry.theirs[0] in state or not is_head(entry.ours)
    }


def to_published(config: ViTConfig, state: Mapping[str, Tensor], gains: Gains | None = None) -> dict[str, Tensor]:
    """Our state dict as timm or the released code wants it, with whichever heads it has."""
    gains = gains or ("gamma_1" if config.class_attention else "ls1.gamma")
    published: dict[str, Tensor] = {}
    for entry in entries(config, gains):
        if entry.ours in state or not is_head(entry.ours):
            published |= zip(entry.theirs, parted(entry, state[entry.ours]), strict=True)
    return published


def gains_of(state: Mapping[str, Tensor]) -> Gains:
    """What a published state dict calls LayerScale."""
    return "gamma_1" if any(key.endswith(".gamma_1") for key in state) else "ls1.gamma"


def is_head(ours: str) -> bool:
    """Whether the name of one of our tensors is a head's."""
    return ours.split(".")[0] in HEADS


def joined(entry: Entry, tensors: list[Tensor]) -> Tensor:
    """The published tensors as the one of ours."""
    if entry.batched:
        tensors = [tensor.squeeze(0) for tensor in tensors]
    if entry.join == "parts":
        return torch.stack([tensor.unflatten(0, (3, -1)) for tensor in tensors], 1).flatten(0, 2)
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=1 if entry.join == "columns" else 0)


def parted(entry: Entry, tensor: Tensor) -> list[Tensor]:
    """The one of ours as the published tensors."""
    count = len(entry.theirs)
    if entry.join == "parts":
        return [part.flatten(0, 1) for part in tensor.unflatten(0, (3, count, -1)).unbind(1)]
    parts = [tensor] if count == 1 else tensor.chunk(count, dim=1 if entry.join == "columns" else 0)
    return [(part[None] if entry.batched else part).contiguous() for part in parts]


def entries(config: ViTConfig, gains: Gains) -> Iterator[Entry]:
    """Every tensor of the model beside its published names, and those of heads it may not have."""
    part = unpublished(config)
    if part is not None:
        raise UserError(f"no published layout has {part}")
    yield from stem_entries(config)
    if config.class_tokens:
        yield Entry("class_tokens", ("cls_token", "dist_token")[: config.class_tokens], batched=True)
    yield Entry("positions.table", ("pos_embed",), batched=True)
    for place in range(config.depth):
        yield from block_entries(config, place, gains)
    for place in range(config.class_attention.depth if config.class_attention else 0):
        yield from class_block_entries(config, place)
    for kind in ("weight", "bias"):
        yield Entry(f"norm.{kind}", (f"norm.{kind}",))
        for ours, theirs in HEADS.items():
            yield Entry(f"{ours}.{kind}", (f"{theirs}.{kind}",))


def unpublished(config: ViTConfig) -> str | None:
    """What of a model nobody has published weights of, and so no layout is known for."""
    parts = {
        f"a stem like {config.stem}": stem_modules(config) is None,
        f"{config.positions} positions": config.positions != "learned",
        f"a class token that joins at block {config.class_token_at}": config.class_token_at
        not in (None, 0, config.depth),
        f"a residual like {config.residual}": not isinstance(config.residual, Plain | Scaled | LayerScale),
        f"a residual like {config.class_residual}": not isinstance(config.class_residual, Plain | Scaled | LayerScale),
        f"a norm like {config.norm}": not isinstance(config.norm, LayerNorm),
        "norms after the sum": config.norm_position == "post",
        "parallel branches of talking heads": config.branches > 1 and config.attention == "talking_heads",
    }
    return next((part for part, is_there in parts.items() if is_there), None)


def stem_modules(config: ViTConfig) -> list[str] | None:
    """Published names of the stem's modules in our order, or nothing where none is published."""
    match config.stem:
        case LinearStem(norm="none", activation="none"):
            return ["proj"]
        case ConvStem(kernels=kernels, norm="batch", activation="relu"):
            return [name for step in range(1, len(kernels)) for name in (f"conv{step}", f"bn{step}", "")] + ["proj"]
    return None


def stem_entries(config: ViTConfig) -> Iterator[Entry]:
    """The stem's tensors."""
    for place, name in enumerate(stem_modules(config) or []):
        kinds = ["weight"] if name.startswith("conv") else ["weight", "bias"]
        kinds += ["running_mean", "running_var", "num_batches_tracked"] if name.startswith("bn") else []
        for kind in kinds if name else []:
            yield Entry(f"stem.{place}.{kind}", (f"patch_embed.{name}.{kind}",))


def block_entries(config: ViTConfig, place: int, gains: Gains) -> Iterator[Entry]:
    """A trunk block's tensors."""
    many = config.branches > 1
    for ours, norm, operation, layers, gain in (
        ("attention", "norm1", "attn", ("qkv", "proj"), gains),
        ("mlp", "norm2", "mlp", ("fc1", "fc2"), gains.replace("1", "2")),
    ):
        group = "attns" if ours == "attention" else "ffns"
        prefixes = [f"{group}.{branch}." for branch in range(config.branches)] if many else [""]
        norm, gain = ("norm", "ls.gamma") if many else (norm, gain)

        def entry(
            mine: str,
            theirs: str,
            join: Join = "rows",
            ours: str = ours,
            prefixes: list[str] = prefixes,
        ) -> Entry:
            names = tuple(f"blocks.{place}.{prefix}{theirs}" for prefix in prefixes)
            return Entry(f"blocks.{place}.{ours}.{mine}", names, join)

        yield entry("norm.weight", f"{norm}.weight")
        yield entry("norm.bias", f"{norm}.bias")
        by_part: Join = "parts" if ours == "attention" else "rows"
        yield entry("input.weight", f"{operation}.{layers[0]}.weight", by_part)
        if ours == "mlp" or config.qkv_bias:
            yield entry("input.bias", f"{operation}.{layers[0]}.bias", by_part)
        yield entry("output.weight", f"{operation}.{layers[1]}.weight", "columns")
        yield entry("output_bias", f"{operation}.{layers[1]}.bias")
        if isinstance(config.residual, LayerScale):
            yield entry("gain.weight", gain)
        if ours == "attention" and config.attention == "talking_heads":
            for mine, theirs in (("before", "proj_l"), ("after", "proj_w")):
                yield entry(f"operation.{mine}", f"attn.{theirs}.weight")
                yield entry(f"operation.{mine}_bias", f"attn.{theirs}.bias")


def class_block_entries(config: ViTConfig, place: int) -> Iterator[Entry]:
    """A class-attention block's tensors."""
    ours, theirs = f"class_blocks.{place}", f"blocks_token_only.{place}"
    for kind in ("weight", "bias"):
        yield Entry(f"{ours}.attention.norm.{kind}", (f"{theirs}.norm1.{kind}",))
        if kind == "weight" or config.qkv_bias:
            yield Entry(f"{ours}.attention.query.{kind}", (f"{theirs}.attn.q.{kind}",))
            yield Entry(f"{ours}.attention.key_value.{kind}", (f"{theirs}.attn.k.{kind}", f"{theirs}.attn.v.{kind}"))
        yield Entry(f"{ours}.attention.output.{kind}", (f"{theirs}.attn.proj.{kind}",))
        yield Entry(f"{ours}.mlp.norm.{kind}", (f"{theirs}.norm2.{kind}",))
        yield Entry(f"{ours}.mlp.input.{kind}", (f"{theirs}.mlp.fc1.{kind}",))
    yield Entry(f"{ours}.mlp.output.weight", (f"{theirs}.mlp.fc2.weight",))
    yield Entry(f"{ours}.mlp.output_bias", (f"{theirs}.mlp.fc2.bias",))
    if isinstance(config.class_residual, LayerScale):
        yield Entry(f"{ours}.attention.gain.weight", (f"{theirs}.gamma_1",))
        yield Entry(f"{ours}.mlp.gain.weight", (f"{theirs}.gamma_2",))
