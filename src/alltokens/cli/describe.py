"""`alltokens describe`: what a model is, with any field of its config changed."""

from dataclasses import dataclass

import torch
import yaml
from torch import Tensor, nn
from tyro.conf import Positional

from alltokens.cli.flags import parse
from alltokens.cli.table import print_table
from alltokens.models.config import ViTConfig
from alltokens.models.counts import count
from alltokens.models.published import rows
from alltokens.models.vit import VisionTransformer
from alltokens.models.zoo import find
from alltokens.plain import to_plain

PROGRAM = "alltokens describe"


@dataclass(frozen=True)
class Flags:
    """What a model is: its stages, their shapes, its parameters and FLOPs, and its config.

    'alltokens describe NAME --help' lists the fields that can be changed.
    """

    name: Positional[str]
    """One of 'alltokens models'."""


@dataclass(frozen=True)
class Stage:
    """One part of the model, in the order of the forward pass."""

    name: str
    output: str
    """Shape for one image; empty for what is only added to tokens."""
    parameters: int


def run(arguments: list[str]) -> None:
    """Print stages, totals, printed accuracies and the config."""
    name = parse(Flags, arguments[:1], PROGRAM).name
    published = find(name)
    config = parse(ViTConfig, arguments[1:], f"{PROGRAM} {name}", default=published)
    changed = "" if config == published else ", changed"
    print(f"{name}{changed}: {config.image_size[0]} x {config.image_size[1]} pixels, {config.classes} classes\n")
    stages = [[stage.name, stage.output, f"{stage.parameters:,}"] for stage in model_stages(config)]
    print_table(["stage", "output", "parameters"], stages, left=["stage"])
    costs = count(config)
    print(f"\n{costs.parameters:,} parameters, {costs.flops / 1e9:.2f} GFLOPs (multiply-adds for one image)")
    if config == published:
        print_accuracies(name)
    print("\n" + yaml.safe_dump(to_plain(config), sort_keys=False, default_flow_style=None, width=120), end="")


def print_accuracies(name: str) -> None:
    """What the papers print of the model, tables that agree on one line."""
    places: dict[str, list[str]] = {}
    for row in rows(name):
        if row.top1 is not None:
            places.setdefault(f"{row.top1} % top-1{f', {row.note}' if row.note else ''}", []).append(row.where)
    for accuracy, tables in places.items():
        print(f"printed: {accuracy} ({'; '.join(tables)})")


def model_stages(config: ViTConfig) -> list[Stage]:
    """Stages whose parameters add up to the model's; shapes are seen in a forward pass on the meta device."""
    shapes: dict[str, str] = {}

    def watch(name: str, module: nn.Module) -> None:
        def note_shape(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            shapes[name] = " x ".join(map(str, output.shape[1:]))

        module.register_forward_hook(note_shape)

    with torch.device("meta"):
        model = VisionTransformer(config).eval()
        named = parts(model)
        for name, part in named.items():
            watch(name, part[-1] if isinstance(part, nn.ModuleList) else part)
        model(torch.empty(1, config.channels, *config.image_size))
    stages = [Stage(name, shapes.get(name, ""), parameters(part)) for name, part in named.items()]
    if model.class_tokens is not None:
        stages.insert(2, Stage("class tokens", f"{config.class_tokens} x {config.width}", model.class_tokens.numel()))
    return stages


def parts(model: VisionTransformer) -> dict[str, nn.Module]:
    """The model's modules under the names a reader knows, those it does not have left out."""
    config = model.config
    named = {
        "stem": model.stem,
        "positions": model.positions,
        f"trunk, {config.depth} blocks": model.blocks,
        f"class attention, {config.class_attention.depth if config.class_attention else 0} blocks": model.class_blocks,
        "final norm": model.norm,
        "image head": model.head,
        "token head": model.token_head,
        "distillation head": model.distillation_head,
    }
    return {name: module for name, module in named.items() if module is not None}


def parameters(module: nn.Module) -> int:
    """Parameters of a module and all in it."""
    return sum(parameter.numel() for parameter in module.parameters())
