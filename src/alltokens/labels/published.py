"""Targets and loss with the numbers of the released LV-ViT code, its transposed crops included."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from alltokens.labels.align import Footprint, SparseTargets, footprint_at, is_on_map, zero_fill
from alltokens.labels.score_map import ScoreMaps
from alltokens.labels.sparse_loss import token_cross_entropy
from alltokens.shapes import Float, Int

Alignment = Literal["exact", "published"]
"""Whether labels are read where the image is seen, or as the released code reads them, rows and columns exchanged."""


def published_view(view: Float[Tensor, "2 3"], crop: tuple[float, float, float, float]) -> Float[Tensor, "2 3"]:
    """Where the released code reads the labels of a view that begins with this crop (top, left, height, width).

    The crop goes down where it should go across; what follows it, flips and turns of the canvas, is as it should be.
    """
    top, left, height, width = crop
    offset, stretch = torch.tensor([left, top]), torch.tensor([height / width, width / height])
    within = view - F.pad(offset[:, None], (2, 0))
    return within * stretch[:, None] + F.pad(offset.flip(0)[:, None], (2, 0))


def published_targets(
    score_maps: ScoreMaps,
    crops: Float[Tensor, "b 4"],
    grid: tuple[int, int],
    classes: int,
    smoothing: float = 0.0,
) -> SparseTargets:
    """Targets of crops (top, left, height, width in parts of the image); the image's own target has a grid of (1, 1).

    Smoothed ones sum to 1 + smoothing / classes.
    """
    footprint = published_footprint(score_maps, crops, grid)
    off = smoothing / classes
    return zero_fill(score_maps, footprint, classes).scaled(1.0 - smoothing + off, off)


def published_footprint(maps: ScoreMaps, crops: Float[Tensor, "b 4"], grid: tuple[int, int]) -> Footprint:
    """RoIAlign with top and height taken for x, left and width for y, and as many points as a token spans cells."""
    top, left, height, width = crops.unbind(1)
    rows, columns = maps.grids.unbind(1)
    x, share_x = axis_points(top, top + height, grid[1], columns, maps.normalizer.shape[2])
    y, share_y = axis_points(left, left + width, grid[0], rows, maps.normalizer.shape[1])
    shape = len(crops), *grid, y.shape[2], x.shape[2]
    x, share_x = (part[:, None, :, None].expand(shape).flatten(3).flatten(1, 2) for part in (x, share_x))
    y, share_y = (part[:, :, None, :, None].expand(shape).flatten(3).flatten(1, 2) for part in (y, share_y))
    return footprint_at(maps, x, y, share_x * share_y * is_on_map(maps, x, y))


def axis_points(
    start: Float[Tensor, " b"], end: Float[Tensor, " b"], tokens: int, cells: Int[Tensor, " b"], most_cells: int
) -> tuple[Float[Tensor, "b tokens s"], Float[Tensor, "b tokens s"]]:
    """Points of each token on one axis, in cells, and their shares: as many as the token spans cells, rounded up."""
    start, end = start * cells - 0.5, end * cells - 0.5
    length = (end - start).clamp(min=1) / tokens
    count = length.ceil()
    most = -(-most_cells // tokens) + 1  # rounding may take a crop of everything past its last cell
    token = torch.arange(tokens, device=start.device)[:, None]
    point = torch.arange(most, device=start.device)
    length, count = length[:, None, None], count[:, None, None]
    places = start[:, None, None] + token * length + (point + 0.5) * length / count
    return places, ((point < count) / count).expand_as(places)


def published_loss(
    image_logits: Float[Tensor, "b classes"],
    token_logits: Float[Tensor, "b n classes"],
    image: SparseTargets,
    tokens: SparseTargets,
    mixed: float = 0.0,
    beta: float = 1.0,
) -> Float[Tensor, ""]:
    """Cross-entropy of the image with its target and of the tokens with theirs.

    `mixed` is the part of the tokens that come from the batch reversed; their logits are back in place.
    """
    own = image.dense()[:, 0]
    target = (1 - mixed) * own + mixed * own.flip(0)
    image_loss = -(target * F.log_softmax(image_logits.float(), 1)).sum(1).mean()
    return image_loss + beta * token_cross_entropy(token_logits, tokens)
