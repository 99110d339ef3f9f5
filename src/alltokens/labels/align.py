"""Score maps read through views: a target for every token, sparse from end to end and made on the batch's device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from alltokens.errors import UserError, did_you_mean
from alltokens.geometry.view import View
from alltokens.labels.merge import merge
from alltokens.labels.score_map import ScoreMap, ScoreMaps
from alltokens.shapes import Bool, Float, Int

Rule = Literal["zero_fill", "probabilities"]
ImageTarget = Literal["class_label", "score_map", "blend"]


@dataclass(frozen=True, eq=False)
class SparseTargets:
    """For every token `floor` as the target of each class, and `values` on top of it for the classes in `ids`."""

    ids: Int[Tensor, "b n s"]
    """Class ids; a class has one value that is not zero, however often it is repeated."""
    values: Float[Tensor, "b n s"]
    """Probability above the floor."""
    floor: Float[Tensor, "b n"]
    """Probability of every class that `ids` does not name."""
    labelled: Bool[Tensor, "b n"]
    """Tokens that have a target; all is zero for the others."""
    classes: int
    """Classes altogether."""

    def dense(self) -> Float[Tensor, "b n classes"]:
        """The probability of every class."""
        return self.floor[..., None].repeat(1, 1, self.classes).scatter_add_(2, self.ids.long(), self.values)

    def scaled(self, factor: float, added: float) -> "SparseTargets":
        """Every probability times `factor` plus `added`, where there is a target."""
        floor = (self.floor * factor + added) * self.labelled
        return replace(self, values=self.values * factor, floor=floor)

    def each(self, change: Callable[[Tensor], Tensor]) -> "SparseTargets":
        """Every tensor changed alike, as by a mix that takes some tokens from another image."""
        ids, values, floor, labelled = map(change, (self.ids, self.values, self.floor, self.labelled))
        return SparseTargets(ids, values, floor, labelled, self.classes)

    def to(self, device: torch.device | str) -> "SparseTargets":
        """The same on another device."""
        return self.each(lambda tensor: tensor.to(device))


@dataclass(frozen=True, eq=False)
class Footprint:
    """The cells of a score map that make up each token's target."""

    cells: Int[Tensor, "b n m"]
    """Cells in row-major order; they may repeat."""
    weights: Float[Tensor, "b n m"]
    """Their shares of the average."""
    labelled: Bool[Tensor, "b n"]
    """Tokens with a sample on the map."""


def token_targets(
    score_maps: Sequence[ScoreMap] | ScoreMaps,
    views: Sequence[View] | Float[Tensor, "b 2 3"],
    grid: tuple[int, int],
    classes: int,
    rule: str = "zero_fill",
    smoothing: float = 0.0,
) -> SparseTargets:
    """The score map averaged over the footprint of each token of the view's canvas (TL, section 4.1).

    A footprint is read at 2 x 2 points as by RoIAlign; points beyond the map do not count, and a token with no other is
    unlabelled. `smoothing` is the mass that is spread evenly over all classes.
    """
    if min(grid) < 1:
        raise UserError(f"a grid needs at least one row and one column of tokens; got grid={grid}")
    require_smoothing(smoothing)
    maps, canvas = batched(score_maps, views, classes)
    footprint = average_over_tokens(maps, canvas, grid, samples=(2, 2))
    return rule_named(rule)(maps, footprint, classes).scaled(1.0 - smoothing, smoothing / classes)


def view_targets(
    score_maps: Sequence[ScoreMap] | ScoreMaps,
    views: Sequence[View] | Float[Tensor, "b 2 3"],
    classes: int,
    rule: str = "zero_fill",
) -> SparseTargets:
    """The score map averaged over the whole view (ReLabel), read at as many points as the largest map has cells."""
    maps, canvas = batched(score_maps, views, classes)
    height, width = maps.normalizer.shape[1:]
    footprint = average_over_tokens(maps, canvas, grid=(1, 1), samples=(height, width))
    return rule_named(rule)(maps, footprint, classes)


def require_smoothing(smoothing: float) -> None:
    """Raise unless it is a share that leaves something of the target."""
    if not 0.0 <= smoothing < 1.0:
        raise UserError(f"smoothing must be at least 0 and below 1; got smoothing={smoothing}")


def batched(
    score_maps: Sequence[ScoreMap] | ScoreMaps, views: Sequence[View] | Float[Tensor, "b 2 3"], classes: int
) -> tuple[ScoreMaps, Float[Tensor, "b 2 3"]]:
    """Both as tensors on one device; ids of single maps are checked, those of a batch would have to be waited for."""
    if not isinstance(score_maps, ScoreMaps):
        score_maps = ScoreMaps.stack(score_maps)
        highest = int(score_maps.classes.max())
        if highest >= classes:
            raise UserError(f"class ids of a score map must be below classes={classes}; got {highest}")
    if len(views) != len(score_maps.logits):
        raise UserError(f"each score map needs a view; got {len(score_maps.logits)} score maps and {len(views)} views")
    if not isinstance(views, Tensor):
        views = torch.stack([view.normalized() for view in views])
    return score_maps, views.to(score_maps.logits.device)


def onto_map(views: Float[Tensor, "b 2 3"], seen: Float[Tensor, "b 2 3"]) -> Float[Tensor, "b 2 3"]:
    """Canvas to image to the annotator's canvas; written out, because autocast would round a matrix product."""
    a, b, _, c, d, _ = seen.flatten(1).unbind(1)
    inverse = torch.stack((d, -b, -c, a), 1).view(-1, 2, 2) / (a * d - b * c)[:, None, None]
    moved = views - F.pad(seen[:, :, 2:], (2, 0))
    return (inverse[..., None] * moved[:, None]).sum(2)


def sample_points(
    maps: Float[Tensor, "b 2 3"], grid: tuple[int, int], samples: tuple[int, int]
) -> tuple[Float[Tensor, "b n s"], Float[Tensor, "b n s"]]:
    """Evenly spaced points in each token, as x and y in the unit square that the maps lead to."""
    (rows, columns), (down, across) = grid, samples
    y = (torch.arange(rows * down, dtype=maps.dtype, device=maps.device) + 0.5) / (rows * down)
    x = (torch.arange(columns * across, dtype=maps.dtype, device=maps.device) + 0.5) / (columns * across)
    shape = rows, columns, down, across
    y = y.view(rows, 1, down, 1).expand(shape).reshape(rows * columns, down * across)
    x = x.view(1, columns, 1, across).expand(shape).reshape(rows * columns, down * across)
    (xx, xy, x0), (yx, yy, y0) = ((part[:, None, None] for part in row.unbind(1)) for row in maps.unbind(1))
    return xx * x + xy * y + x0, yx * x + yy * y + y0


def average_over_tokens(
    maps: ScoreMaps, views: Float[Tensor, "b 2 3"], grid: tuple[int, int], samples: tuple[int, int]
) -> Footprint:
    """The mean over those points of each token that lie on the map."""
    rows, columns = rows_and_columns(maps)
    x, y = sample_points(onto_map(views, maps.views), grid, samples)
    x, y = x * columns - 0.5, y * rows - 0.5
    on_map = is_on_map(maps, x, y).to(x.dtype)
    return footprint_at(maps, x, y, on_map / on_map.sum(-1, keepdim=True).clamp(min=1))


def rows_and_columns(maps: ScoreMaps) -> tuple[Int[Tensor, "b 1 1"], Int[Tensor, "b 1 1"]]:
    """Of each map, to go with its points."""
    return maps.grids[:, 0, None, None], maps.grids[:, 1, None, None]


def is_on_map(maps: ScoreMaps, x: Float[Tensor, "b n s"], y: Float[Tensor, "b n s"]) -> Bool[Tensor, "b n s"]:
    """RoIAlign's rule: half a cell beyond the edge still reads the edge, beyond that there is nothing."""
    rows, columns = rows_and_columns(maps)
    return (x >= -1) & (x <= columns) & (y >= -1) & (y <= rows) & (rows > 0)


def footprint_at(
    maps: ScoreMaps, x: Float[Tensor, "b n s"], y: Float[Tensor, "b n s"], weights: Float[Tensor, "b n s"]
) -> Footprint:
    """Bilinear reading at points given in cells, whole numbers being centres of cells."""
    last_row, last_column = ((count - 1).clamp(min=0) for count in rows_and_columns(maps))
    x, y = x.clamp(min=0).minimum(last_column), y.clamp(min=0).minimum(last_row)
    left, top = x.floor(), y.floor()
    right, bottom = (left + 1).minimum(last_column), (top + 1).minimum(last_row)
    across, down = x - left, y - top
    width = maps.normalizer.shape[2]
    corners = (top * width + left, top * width + right, bottom * width + left, bottom * width + right)
    shares = ((1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across)
    weighted = torch.stack(shares, -1) * weights[..., None]
    return Footprint(torch.stack(corners, -1).long().flatten(2), weighted.flatten(2), (weights > 0).any(-1))


def at_cells(values: Tensor, footprint: Footprint) -> Tensor:
    """The k values [b, k, h, w] of each cell of each footprint, [b, n, m, k]."""
    image = torch.arange(len(values), device=values.device)[:, None, None]
    return values.flatten(2).mT[image, footprint.cells]


def zero_fill(maps: ScoreMaps, footprint: Footprint, classes: int) -> SparseTargets:
    """Logits averaged with zero for the classes that a cell does not name, then softmax over all classes."""
    z = (footprint.weights[..., None] * at_cells(maps.logits, footprint)).flatten(2)
    ids = at_cells(maps.classes.int(), footprint).flatten(2)
    z = merge(ids, z)
    highest = z.amax(-1, keepdim=True).clamp(min=0)
    zero = (-highest).exp()
    above = (z - highest).exp() - zero
    total = above.sum(-1, keepdim=True) + classes * zero
    floor = (zero / total).squeeze(-1) * footprint.labelled
    return SparseTargets(ids, above / total, floor, footprint.labelled, classes)


def probabilities(maps: ScoreMaps, footprint: Footprint, classes: int) -> SparseTargets:
    """Probabilities averaged, a cell's remaining mass being spread evenly over the classes that it does not name."""
    wide = torch.promote_types(maps.logits.dtype, torch.float32)
    named = (maps.logits.to(wide) - maps.normalizer.to(wide)[:, None]).exp()
    # Stored numbers are rounded: they may name a little more than all of the mass.
    named = named / named.sum(1, keepdim=True).clamp(min=1)
    rest = (1 - named.sum(1, keepdim=True)) / max(1, classes - named.shape[1])
    values = (footprint.weights[..., None] * at_cells(named - rest, footprint)).flatten(2)
    ids = at_cells(maps.classes.int(), footprint).flatten(2)
    values = merge(ids, values)
    floor = (footprint.weights * at_cells(rest, footprint).squeeze(-1)).sum(-1)
    return SparseTargets(ids, values, floor, footprint.labelled, classes)


RULES = {"zero_fill": zero_fill, "probabilities": probabilities}


def rule_named(rule: str) -> Callable[[ScoreMaps, Footprint, int], SparseTargets]:
    """The function of a rule."""
    if rule not in RULES:
        raise UserError(f"rule must be one of {', '.join(RULES)}; got '{rule}'{did_you_mean(rule, RULES)}")
    return RULES[rule]


def image_targets(
    labels: Int[Tensor, " b"],
    classes: int,
    choice: ImageTarget = "class_label",
    whole_view: SparseTargets | None = None,
    smoothing: float = 0.0,
) -> Float[Tensor, "b classes"]:
    """The class label (TL, eq. 3), the score map over the whole view (ReLabel), or a blend of both.

    The blend takes the map with the probability that it gives to the class label, and the label with the rest of it.
    `whole_view` comes from `view_targets`; where it has no label, the class label stands.
    """
    require_smoothing(smoothing)
    certain = F.one_hot(labels.long(), classes).float()
    if (choice == "class_label") != (whole_view is None):
        given = "without" if whole_view is None else "with"
        raise UserError(
            f"whole_view goes with the choices score_map and blend, and with no other; got {choice} {given} it"
        )
    if whole_view is not None:
        mapped = whole_view.dense()[:, 0]
        share = mapped.gather(1, labels.long()[:, None]) if choice == "blend" else whole_view.labelled.to(mapped.dtype)
        certain = share * mapped + (1 - share) * certain
    return certain * (1 - smoothing) + smoothing / classes
