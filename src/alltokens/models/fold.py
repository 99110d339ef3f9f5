"""An inference copy of a model in which norms' scales, gains and batch norms have become part of the projections."""

from copy import deepcopy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from alltokens.models.block import Branches, Gain
from alltokens.models.config import Plain
from alltokens.models.vit import VisionTransformer


@torch.no_grad()
def fold(model: VisionTransformer) -> VisionTransformer:
    """A copy in evaluation mode that answers the same with fewer operations; it is not meant to be trained or saved."""
    folded = deepcopy(model).eval().requires_grad_(False)
    if isinstance(folded.stem, nn.Sequential):
        fold_batch_norms(folded.stem)
    for module in folded.modules():
        if isinstance(module, Branches) and not module.post and module.shifts is None:
            fold_branches(module)
    return folded


def fold_branches(module: Branches) -> None:
    """Put the norm's scale and shift into the first projection and the gain into the second."""
    weight, bias = module.folded_input()
    module.input.weight = nn.Parameter(weight, requires_grad=False)
    module.input.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))
    module.norm.weight = module.norm.bias = None
    weight, biases = module.gain.fold(module.output.weight, module.output_bias.unflatten(0, (module.branches, -1)))
    module.output.weight = nn.Parameter(weight, requires_grad=False)
    module.output_bias = nn.Parameter(biases.flatten(), requires_grad=False)
    module.gain = Gain(Plain(), weight.shape[0], module.branches)


def fold_batch_norms(stem: nn.Sequential) -> None:
    """Put each batch norm of the stem into the convolution before it."""
    for place in range(len(stem) - 1):
        convolution, norm = stem[place], stem[place + 1]
        if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            stem[place] = fuse_conv_bn_eval(convolution, norm)
            stem[place + 1] = nn.Identity()
