"""Token targets drawn over the image as the model sees it: each token in the colour of its target's first class."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from alltokens.explain.label_maps import Colour, colours_of, tinted
from alltokens.labels.align import SparseTargets
from alltokens.shapes import Float, Int

NONE = -1
"""In place of a class where a token has no target, or none that stands out."""
UNNAMED: Colour = (128, 128, 128)
"""Of classes that the legend has no room for."""


@dataclass(frozen=True, eq=False)
class TargetMap:
    """The first class of each token's target."""

    first: Int[Tensor, "h w"]
    certainty: Float[Tensor, "h w"]
    """Its probability in the target; 0 where there is none."""

    def shares(self) -> list[tuple[int, float]]:
        """Classes, the most frequent first, and the share of the tokens that each is first in."""
        counts = Counter(number for number in self.first.flatten().tolist() if number != NONE)
        return [(number, count / self.first.numel()) for number, count in counts.most_common()]


def target_maps(targets: SparseTargets, grid: tuple[int, int]) -> list[TargetMap]:
    """One for each image of a batch."""
    above, place = targets.values.max(-1)
    # A negative logit is below those that are not named, which are all alike.
    stands_out = targets.labelled & (above > 0)
    first = targets.ids.gather(-1, place[..., None])[..., 0].long().where(stands_out, NONE)
    certainty = (above + targets.floor) * stands_out
    return [TargetMap(*maps) for maps in zip(first.unflatten(1, grid), certainty.unflatten(1, grid), strict=True)]


def shared_colours(maps: Sequence[TargetMap]) -> dict[int, Colour]:
    """A class has one colour on all of the maps."""
    numbers = torch.cat([one.first.flatten() for one in maps])
    return colours_of(numbers[numbers != NONE])


def draw_targets(image: Image.Image, target_map: TargetMap, colours: dict[int, Colour], legend: int) -> Image.Image:
    """The image under its tokens' targets; classes beyond the most frequent ones, as many as `legend`, are grey."""
    named = {number: colours[number] for number, _ in target_map.shares()[:legend]}
    every = {number: named.get(number, UNNAMED) for number in target_map.first.unique().tolist()}
    return tinted(image, target_map.first, target_map.certainty, every)
