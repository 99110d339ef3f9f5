"""Weights in published layouts (timm's ViT, DeiT, CaiT and parallel models, released LV-ViT) under our names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from alltokens.errors import UserError
from alltokens.models.config import ConvStem, LayerScale, LinearStem, ViTConfig

Join = Literal["rows", "columns", "parts"]


@dataclass(frozen=True)
class Entry:
    """One of our tensors, the published ones it is made of, and how they lie in it."""

    ours: str
    theirs: tuple[str, ...]
    join: Join = "rows"


def from_published(config: ViTConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A published state dict as ours; every tensor of it must be used."""
    cait = any(key.startswith("blocks_token_only.") for key in state)
    layout = list(entries(config, cait))
    wanted = {key for entry in layout for key in entry.theirs}
    differing = sorted(wanted - state.keys()) + sorted(state.keys() - wanted)
    if differing:
        missing = len(wanted - state.keys())
        raise UserError(
            f"the weights do not fit this model: {missing} tensors are missing and {len(differing) - missing} are "
            f"not part of it; the first that differ are {', '.join(differing[:3])}"
        )
    return {entry.ours: joined(entry, [state[key] for key in entry.theirs]) for entry in layout}


def joined(entry: Entry, tensors: list[Tensor]) -> Tensor:
    """The published tensors as the one of ours."""
    # Tokens and positions are published as [1, n, d].
    tensors = [tensor.squeeze(0) if tensor.ndim == 3 else tensor for tensor in tensors]
    if entry.join == "parts":
        return torch.stack([tensor.unflatten(0, (3, -1)) for tensor in tensors], 1).flatten(0, 2)
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=1 if entry.join == "columns" else 0)


def entries(config: ViTConfig, cait: bool) -> Iterator[Entry]:
    """Every tensor of the model beside its published names."""
    yield from stem_entries(config)
    if config.class_tokens:
        yield Entry("class_tokens", ("cls_token", "dist_token")[: config.class_tokens])
    if config.positions == "learned":
        yield Entry("positions.table", ("pos_embed",))
    for place in range(config.depth):
        yield from block_entries(config, place, cait)
    for place in range(config.class_attention.depth if config.class_attention else 0):
        yield from class_block_entries(config, place)
    heads = {"norm": True, "head": True, "aux_head": config.token_head, "head_dist": config.distillation_token}
    ours = {"aux_head": "token_head", "head_dist": "distillation_head"}
    for theirs in (name for name, built in heads.items() if built):
        yield from (Entry(f"{ours.get(theirs, theirs)}.{kind}", (f"{theirs}.{kind}",)) for kind in ("weight", "bias"))


def stem_entries(config: ViTConfig) -> Iterator[Entry]:
    """The stem's tensors; only linear and convolutional ones are published."""
    match config.stem:
        case LinearStem(norm="none", activation="none"):
            names = ["proj"]
        case ConvStem(kernels=kernels, norm="batch", activation="relu"):
            steps = range(1, len(kernels))
            names = [name for step in steps for name in (f"conv{step}", f"bn{step}", "")] + ["proj"]
        case stem:
            raise UserError(f"no published layout has a stem like {stem}")
    for place, name in enumerate(names):
        kinds = ["weight"] if name.startswith("conv") else ["weight", "bias"]
        kinds += ["running_mean", "running_var", "num_batches_tracked"] if name.startswith("bn") else []
        for kind in kinds if name else []:
            yield Entry(f"stem.{place}.{kind}", (f"patch_embed.{name}.{kind}",))


def block_entries(config: ViTConfig, place: int, cait: bool) -> Iterator[Entry]:
    """A trunk block's tensors."""
    many = config.branches > 1
    for ours, norm, operation, layers, gain in (
        ("attention", "norm1", "attn", ("qkv", "proj"), "gamma_1" if cait else "ls1.gamma"),
        ("mlp", "norm2", "mlp", ("fc1", "fc2"), "gamma_2" if cait else "ls2.gamma"),
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
