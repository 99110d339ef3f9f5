"""All initialisation of a vision transformer.

| what | how |
| --- | --- |
| linear layers, talking-heads mixing, class tokens, learned and relative positions | truncated normal 0.02 |
| biases and shifts | 0 |
| directions of a performer | orthogonal, times the square root of their number |
| convolutions and the norms of a stem | PyTorch's own |
| norms of tokens | scale 1, shift 0 |
| gains | as the residual rule says |
| branches under Fixup and T-Fixup | as the rule says, on top of the above |
"""

from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.init import kaiming_normal_, orthogonal_, trunc_normal_, xavier_normal_, zeros_

from alltokens.models.attention import DotProduct, TalkingHeads
from alltokens.models.block import Branches, Gain, Gelu
from alltokens.models.config import Fixup, LayerScale, ScalarGain, TFixup, ViTConfig
from alltokens.models.norms import TokenNorm
from alltokens.models.positions import Positions
from alltokens.models.stems import LocalTransformer
from alltokens.models.t2t import Performer


@torch.no_grad()
def initialize(model: nn.Module, config: ViTConfig) -> None:
    """Draw every parameter of the model anew."""
    for module in model.modules():
        initialize_own(module)
    for name, module in model.named_modules():
        if isinstance(module, Branches) and name.startswith("blocks."):
            initialize_branches(module, config.depth)
        elif name.endswith("head") and isinstance(config.residual, Fixup) and isinstance(module, nn.Linear):
            zeros_(module.weight)


@torch.no_grad()
def initialize_own(module: nn.Module) -> None:
    """Draw what belongs to this module alone."""
    small: list[Tensor | None] = []
    zero: list[Tensor | None] = []
    match module:
        case nn.Linear():
            small, zero = [module.weight], [module.bias]
        case nn.Conv2d() | nn.BatchNorm2d() | nn.LayerNorm():
            module.reset_parameters()
        case TokenNorm(weight=nn.Parameter() as scale):
            nn.init.ones_(scale)
            zero = [module.bias]
        case Gain(weight=nn.Parameter() as weight):
            initialize_gain(module, weight)
        case TalkingHeads():
            small, zero = [module.before, module.after], [module.before_bias, module.after_bias]
        case DotProduct() | Positions():
            small = [module.table]
        case LocalTransformer():
            small = [module.positions]
        case Performer(directions=directions):
            # torch decomposes no 16-bit matrices.
            drawn = orthogonal_(torch.empty_like(directions, dtype=torch.float32))
            directions.copy_(drawn * len(directions) ** 0.5)
        case Branches():
            zero = [module.output_bias, module.shifts]
        case Gelu():
            zero = [module.shift]
        case nn.Module(class_tokens=nn.Parameter() as class_tokens):
            small = [class_tokens]
    for parameter in small:
        if parameter is not None:
            trunc_normal_(parameter, std=0.02)
    for parameter in zero:
        if parameter is not None:
            zeros_(parameter)


def initialize_gain(gain: Gain, weight: nn.Parameter) -> None:
    """The first value of a learned gain."""
    match gain.residual:
        case LayerScale(draw="uniform", initial=initial):
            weight.uniform_(0.0, 2 * initial)
        case LayerScale(initial=initial) | ScalarGain(initial=initial):
            weight.fill_(initial)
        case _:
            weight.fill_(1.0)


def initialize_branches(module: Branches, depth: int) -> None:
    """What Fixup and T-Fixup ask of a trunk of this depth."""
    first, second = module.input.weight, module.output.weight
    match module.gain.residual:
        case Fixup():
            # Two layers in each of the 2 depth branches: He's draw times (2 depth)^(-1/2), then zeros.
            kaiming_normal_(first).mul_((2 * depth) ** -0.5)
            zeros_(second)
        case TFixup():
            for part in chain(first.chunk(module.parts * module.branches), second.chunk(module.branches, 1)):
                xavier_normal_(part)
            # Values (the last part of attention's first layer), outputs and both layers of the MLP.
            scale = 0.67 * depth**-0.25
            first.chunk(module.parts)[-1].mul_(scale)
            second.mul_(scale)
