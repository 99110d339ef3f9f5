"""CutMix and Mixup on pixels: for models without an embedding to mix after, and for recipes that ask for them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from alltokens.errors import UserError
from alltokens.mix import token_mix
from alltokens.mix.draws import Purpose, symmetric_beta
from alltokens.mix.token_mix import TokenMix
from alltokens.shapes import Bool, Float, Int


@dataclass(frozen=True)
class PixelMix:
    """Which pixels of each image come from its partner (CutMix), or how much of every pixel does (Mixup).

    Under CutMix every tensor of a sparse target goes through `swap_targets` alike. Mixup would join the classes of two
    sparse targets; as cross-entropy is linear in its target, blend the losses with each of the two instead.
    """

    swapped: Bool[Tensor, "#b h w"] | None
    """Cells of the image that come from the partner; None where every pixel is blended."""
    partner: Int[Tensor, "b"]
    """The image in the batch with which each image is mixed, a permutation."""
    weight: Float[Tensor, "b"]
    """Share of each image that stays: the mean of `~swapped`, or lambda."""

    @classmethod
    def cutmix(
        cls,
        batch: int,
        grid: tuple[int, int],
        generator: torch.Generator,
        alpha: float = 1.0,
        pairwise: bool = False,
    ) -> "PixelMix":
        """A box of whole cells of a token grid, as `TokenMix.draw` draws it; without tokens the cells are pixels.

        So give the grid of the token targets, or the height and width of the images where there are none.
        """
        mix = TokenMix.draw(batch, grid, generator, alpha, pairwise)
        return cls(mix.swapped, mix.partner, mix.weight)

    @classmethod
    def mixup(cls, batch: int, generator: torch.Generator, alpha: float = 1.0, pairwise: bool = False) -> "PixelMix":
        """One lambda and the batch reversed as partners; `pairwise`, a lambda for each image and random partners."""
        random = token_mix.random_numbers(generator)
        weight = token_mix.draw_lambdas(batch, random, alpha, pairwise).float().expand(batch)
        return cls(None, token_mix.draw_partner(batch, random, pairwise), weight)

    @classmethod
    def cutmix_of_pairs(cls, seeds: Int[Tensor, "b"], grid: tuple[int, int], alpha: float = 1.0) -> "PixelMix":
        """The boxes of `TokenMix.of_pairs`; the grid is that of token targets, or of pixels where there are none."""
        mix = TokenMix.of_pairs(seeds, grid, alpha)
        return cls(mix.swapped, mix.partner, mix.weight)

    @classmethod
    def mixup_of_pairs(cls, seeds: Int[Tensor, "b"], alpha: float = 1.0, purpose: Purpose = Purpose.MIX) -> "PixelMix":
        """One lambda for the images 2i and 2i + 1, which are each other's partners, by the seed of the first."""
        token_mix.check_alpha(alpha)
        first, second = token_mix.numbers_of_pairs(seeds, purpose, 2).unbind(1)
        weight = symmetric_beta(first, second, alpha).float().repeat_interleave(2)
        return cls(None, token_mix.neighbours(seeds), weight)

    def only(self, mixed: Bool[Tensor, "b"]) -> "PixelMix":
        """The same mix for some of the images, none for the others."""
        swapped = None if self.swapped is None else self.swapped & mixed[:, None, None]
        return PixelMix(swapped, self.partner, torch.where(mixed, self.weight, 1.0))

    def to(self, device: torch.device | str) -> "PixelMix":
        """The same mix where the images are."""
        swapped = None if self.swapped is None else self.swapped.to(device)
        return PixelMix(swapped, self.partner.to(device), self.weight.to(device))

    def swap(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b c H W"]:
        """Mixed images."""
        if self.swapped is None:
            return token_mix.blend(images, self.partner, self.weight, "images")
        channels, height, width = images.shape[1:]
        swapped = as_pixels(self.swapped, height, width)[:, None].expand(-1, channels, -1, -1)
        return token_mix.swap_places(swapped, self.partner, images, "images")

    def swap_targets(self, targets: Tensor) -> Tensor:
        """The token targets [b, n, ...] of mixed images; under Mixup they are blended as the pixels are."""
        if self.swapped is None:
            return token_mix.blend(targets, self.partner, self.weight, "token targets")
        return token_mix.swap_places(self.swapped.flatten(1), self.partner, targets, "token targets")

    def blend(self, targets: Tensor) -> Float[Tensor, "b k"]:
        """The targets [b, k] of mixed images, each class weighed by the share of the image."""
        return token_mix.blend(targets, self.partner, self.weight, "image targets")


def as_pixels(cells: Bool[Tensor, "m h w"], height: int, width: int) -> Bool[Tensor, "m height width"]:
    """Each pixel is in the cell that holds its centre, so that sizes which are no multiple of the grid work too."""
    h, w = cells.shape[1:]
    if height < h or width < w:
        raise UserError(
            "images must have at least a pixel for each cell of the mix; "
            f"got {height} x {width} pixels for {h} x {w} cells"
        )
    for axis, count, pixels in ((1, h, height), (2, w, width)):
        centres = 2 * torch.arange(pixels, device=cells.device) + 1  # in half pixels, where they are whole numbers
        cells = cells.index_select(axis, centres * count // (2 * pixels))
    return cells
