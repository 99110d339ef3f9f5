"""What an annotator says of an image: its top classes in every cell of a grid, and the part of the image it saw."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor
from torch.nn import functional as F

from alltokens.errors import UserError
from alltokens.shapes import Float, Int


def whole_image() -> Float[Tensor, "2 3"]:
    """The view of an annotator that saw all of the image: the identity of the unit square."""
    return torch.eye(2, 3)


@dataclass(frozen=True, eq=False)
class ScoreMap:
    """The annotator's top classes in each cell of one image."""

    classes: Tensor
    """Class ids [k, h, w], distinct within a cell."""
    logits: Tensor
    """Their logits [k, h, w]."""
    normalizer: Tensor
    """Log-sum-exp [h, w] of a cell's logits over all classes: exp(logits - normalizer) are probabilities."""
    view: Tensor = field(default_factory=whole_image)
    """Map [2, 3] from the annotator's canvas to the image, each taken as the unit square."""

    def __post_init__(self) -> None:
        check_shapes(self)
        check_values(self)

    @classmethod
    def from_dense(cls, logits: Tensor, top_k: int = 5) -> "ScoreMap":
        """Keep the highest logits of each cell of [classes, h, w], a score map over the whole image."""
        if logits.ndim != 3 or not logits.is_floating_point():
            raise UserError(f"dense logits must be floats [classes, h, w]; got {logits.dtype} {tuple(logits.shape)}")
        if not 1 <= top_k <= logits.shape[0]:
            raise UserError(f"top_k must be between 1 and the {logits.shape[0]} classes; got top_k={top_k}")
        top, ids = logits.topk(top_k, dim=0)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return cls(classes=ids, logits=top, normalizer=wide.logsumexp(0))


def check_shapes(score_map: ScoreMap) -> None:
    """Each tensor has its dimensions, and they agree."""
    shape = score_map.classes.shape
    agree = (
        len(shape) == 3
        and score_map.logits.shape == shape
        and score_map.normalizer.shape == shape[1:]
        and score_map.view.shape == (2, 3)
    )
    if not agree or 0 in shape:
        got = [tuple(x.shape) for x in (score_map.classes, score_map.logits, score_map.normalizer, score_map.view)]
        raise UserError(
            "a score map needs classes [k, h, w], logits [k, h, w], normalizer [h, w] and view [2, 3]; "
            f"got {', '.join(map(str, got))}"
        )


def check_values(score_map: ScoreMap) -> None:
    """Ids name classes, once a cell; everything else is finite."""
    ids = score_map.classes
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise UserError(f"class ids of a score map must be integers; got {ids.dtype}")
    if int(ids.min()) < 0:
        raise UserError(f"class ids of a score map must be at least 0; got {int(ids.min())}")
    ordered = ids.sort(0).values
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise UserError(f"a class may appear once in a cell of a score map; got class {int(repeated[0])} twice")
    for name in ("logits", "normalizer", "view"):
        value: Tensor = getattr(score_map, name)
        # The sum is cheap; where it overflows, each value is looked at.
        if not isfinite(float(value.sum())) and not value.isfinite().all():
            bad = value[~value.isfinite()][0]
            raise UserError(f"the {name} of a score map must be finite numbers; got {float(bad)}")
    (a, b, _), (c, d, _) = score_map.view.tolist()
    if a * d == b * c:
        raise UserError(f"the view of a score map must not fold its canvas into a line; got {score_map.view.tolist()}")


@dataclass(frozen=True, eq=False)
class ScoreMaps:
    """Score maps of a batch; smaller ones have padding to the right and below."""

    classes: Int[Tensor, "b k h w"]
    """Class ids, distinct within a cell."""
    logits: Float[Tensor, "b k h w"]
    """Their logits."""
    normalizer: Float[Tensor, "b h w"]
    """Log-sum-exp of a cell's logits over all classes."""
    views: Float[Tensor, "b 2 3"]
    """Maps from the annotator's canvas to the image, each taken as the unit square."""
    grids: Int[Tensor, "b 2"]
    """Rows and columns of each map, padding not counted; (0, 0) is an image without labels."""

    @classmethod
    def of_whole_images(
        cls, classes: Int[Tensor, "b k h w"], logits: Float[Tensor, "b k h w"], normalizer: Float[Tensor, "b h w"]
    ) -> "ScoreMaps":
        """Maps of one shape, by an annotator that saw all of each image."""
        b, *grid = normalizer.shape
        views = whole_image().to(normalizer).repeat(b, 1, 1)
        return cls(classes, logits, normalizer, views, torch.tensor(grid, device=normalizer.device).repeat(b, 1))

    @classmethod
    def stack(cls, score_maps: Sequence[ScoreMap]) -> "ScoreMaps":
        """One batch of several score maps, which may differ in their grids."""
        depths = {len(score_map.classes): None for score_map in score_maps}
        if len(depths) != 1:
            got = " and ".join(f"k = {k}" for k in depths) or "none"
            raise UserError(f"a batch needs at least one score map, and one k for all of them; got {got}")
        grids = torch.tensor([score_map.normalizer.shape for score_map in score_maps])
        size = tuple(grids.amax(0).tolist())
        return cls(
            classes=padded([score_map.classes for score_map in score_maps], size),
            logits=padded([score_map.logits for score_map in score_maps], size),
            normalizer=padded([score_map.normalizer for score_map in score_maps], size),
            views=torch.stack([score_map.view for score_map in score_maps]),
            grids=grids.to(score_maps[0].normalizer.device),
        )

    def to(self, device: torch.device | str) -> "ScoreMaps":
        """The same on another device; copies from pinned memory are not waited for."""
        waits = torch.device(device).type == "cpu"
        parts = self.classes, self.logits, self.normalizer, self.views, self.grids
        return ScoreMaps(*(part.to(device, non_blocking=not waits) for part in parts))


def padded(maps: Sequence[Tensor], size: tuple[int, ...]) -> Tensor:
    """Tensors [..., h, w] as one, zeros to the right and below of those that are smaller than `size`."""
    return torch.stack([F.pad(x, (0, size[1] - x.shape[-1], 0, size[0] - x.shape[-2])) for x in maps])
