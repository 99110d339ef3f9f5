"""A built model for another image size, class count or channel count, its other weights kept."""

from dataclasses import replace

import torch
from timm.models._manipulate import adapt_input_conv
from torch import Tensor, nn
from torch.nn import functional as F

from alltokens.errors import UserError
from alltokens.models.attention import DotProduct
from alltokens.models.initialize import initialize_own
from alltokens.models.vit import VisionTransformer
from alltokens.shapes import Float


@torch.no_grad()
def set_image_size(model: VisionTransformer, height: int, width: int, antialias: bool = False) -> None:
    """Take images of this size: learned and relative positions are resampled bicubically.

    Released LV-ViT models resample without antialiasing, timm with it.
    """
    before, after = model.config, replace(model.config, image_size=(height, width))
    table = model.positions.table
    if table is not None:
        first = model.positions.class_tokens
        tokens = resample(table[first:], before.grid, after.grid, antialias)
        model.positions.table = nn.Parameter(torch.cat((table[:first], tokens)), table.requires_grad)
    for module in model.blocks.modules():
        if isinstance(module, DotProduct) and module.table is not None:
            sides = [(2 * h - 1, 2 * w - 1) for h, w in (before.grid, after.grid)]
            count = sides[0][0] * sides[0][1]
            offsets = resample(module.table[:count], sides[0], sides[1], antialias)
            module.table = nn.Parameter(torch.cat((offsets, module.table[count:])), module.table.requires_grad)
    model.config = after


def resample(
    table: Float[Tensor, "n d"], before: tuple[int, int], after: tuple[int, int], antialias: bool
) -> Float[Tensor, "m d"]:
    """A table over one grid as a table over another."""
    if before == after:
        return table
    image = table.T.unflatten(1, before)[None].float()
    resized = F.interpolate(image, after, mode="bicubic", antialias=antialias)
    return resized[0].flatten(1).T.to(table.dtype)


@torch.no_grad()
def set_classes(model: VisionTransformer, classes: int) -> None:
    """Replace every head by a fresh one for this many classes."""
    config = replace(model.config, classes=classes)
    like = next(model.parameters())
    has_head = {"head": True, "token_head": config.token_head, "distillation_head": config.distillation_token}
    for name in (name for name, has in has_head.items() if has):
        head = nn.Linear(config.width, classes, device=like.device, dtype=like.dtype)
        initialize_own(head)
        setattr(model, name, head)
    model.config = config


@torch.no_grad()
def set_channels(model: VisionTransformer, channels: int) -> None:
    """Take images with this many channels, the first layer's weights summed or repeated (timm's rule)."""
    before, config = model.config.channels, replace(model.config, channels=channels)
    if before != 3:
        raise UserError(f"only a model with 3 channels can be given {channels}; this one has {before}")
    first = next(module for module in model.stem.modules() if isinstance(module, nn.Conv2d))
    first.weight = nn.Parameter(adapt_input_conv(channels, first.weight), first.weight.requires_grad)
    first.in_channels = channels
    model.config = config
