"""A built model for another image size, class count or channel count, its other weights kept."""

from dataclasses import replace

import torch
from timm.models._manipulate import adapt_input_conv
from torch import Tensor, nn
from torch.nn import functional as F

from alltokens.errors import UserError
from alltokens.models.attention import DotProduct
from alltokens.models.config import T2TStem
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


def set_classes(model: VisionTransformer, classes: int) -> None:
    """Replace every head by a fresh one for this many classes."""
    model.config = replace(model.config, classes=classes)
    renew_heads(model, model.config.prediction_heads)


@torch.no_grad()
def renew_heads(model: VisionTransformer, heads: list[str]) -> None:
    """Fresh heads in place of these."""
    like = next(model.parameters())
    for name in heads:
        head = nn.Linear(model.config.width, model.config.classes, device=like.device, dtype=like.dtype)
        initialize_own(head)
        setattr(model, name, head)


@torch.no_grad()
def set_channels(model: VisionTransformer, channels: int) -> None:
    """Take images with this many channels, the first layer's weights summed or repeated (timm's rule)."""
    before, config = model.config.channels, replace(model.config, channels=channels)
    if before != 3:
        raise UserError(f"only a model with 3 channels can be given {channels}; this one has {before}")
    if isinstance(config.stem, T2TStem):
        raise UserError(
            "the channels of a T2T stem cannot be changed, because it normalises windows over all of them before its "
            f"first layer; build the model with channels={channels}"
        )
    first = next(module for module in model.stem.modules() if isinstance(module, nn.Conv2d))
    first.weight = nn.Parameter(adapt_input_conv(channels, first.weight), first.weight.requires_grad)
    first.in_channels = channels
    model.config = config
