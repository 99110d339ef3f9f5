"""MixToken: CutMix on the grid of tokens, so that every token shows one image and has that image's target (TL, 3.3)."""

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from alltokens.errors import UserError, by
from alltokens.mix.draws import Purpose, symmetric_beta, uniforms
from alltokens.shapes import Bool, Float, Int


@dataclass(frozen=True)
class TokenMix:
    """Which tokens of each image come from its partner; a mask rather than slices, so that nothing recompiles.

    Every tensor of a sparse target (class ids, values, normalisers) goes through `swap_targets` alike: a token has its
    own target or its partner's, whole. Image targets are dense and go through `blend`.
    """

    swapped: Bool[Tensor, "#b h w"]
    """Tokens that come from the partner; one mask may serve the whole batch."""
    partner: Int[Tensor, "b"]
    """The image in the batch from which each image takes them, a permutation."""
    weight: Float[Tensor, "b"]
    """Share of each image's tokens that stay: the mean of `~swapped`."""

    @classmethod
    def draw(
        cls,
        batch: int,
        grid: tuple[int, int],
        generator: torch.Generator,
        alpha: float = 1.0,
        pairwise: bool = False,
    ) -> "TokenMix":
        """One CutMix box and the batch reversed as partners; `pairwise`, a box for each image and random partners.

        The same state of the generator draws the same mix whatever device will use it; the mix is on the CPU.
        """
        check_grid(grid)
        random = random_numbers(generator)
        kept, partner = draw_lambdas(batch, random, alpha, pairwise), draw_partner(batch, random, pairwise)
        centres = torch.from_numpy(random.integers(grid, size=(len(kept), 2)))
        swapped = box_mask(kept, centres, grid)
        # Not lambda: clipping and rounding to whole tokens leave another share (TL, eq. 7).
        return cls(swapped, partner, (~swapped).float().mean((1, 2)).expand(batch))

    @classmethod
    def of_pairs(cls, seeds: Int[Tensor, "b"], grid: tuple[int, int], alpha: float = 1.0) -> "TokenMix":
        """A CutMix box for the images 2i and 2i + 1, which are each other's partners: mixing twice restores the batch.

        The seed of a pair's first image alone decides its box, so that a batch can be split into whole pairs. The mix
        is where the seeds are, and nothing waits for it.
        """
        check_grid(grid)
        check_alpha(alpha)
        first, second, y, x = numbers_of_pairs(seeds, Purpose.MIX, 4).unbind(1)
        centres = torch.stack((y * grid[0], x * grid[1]), 1).long()
        boxes = box_mask(symmetric_beta(first, second, alpha), centres, grid)
        weight = (~boxes).float().mean((1, 2))
        return cls(boxes.repeat_interleave(2, 0), neighbours(seeds), weight.repeat_interleave(2))

    def only(self, mixed: Bool[Tensor, "b"]) -> "TokenMix":
        """The same mix for some of the images, none for the others."""
        swapped = self.swapped & mixed[:, None, None]
        return TokenMix(swapped, self.partner, torch.where(mixed, self.weight, 1.0))

    def to(self, device: torch.device | str) -> "TokenMix":
        """The same mix where the tokens are."""
        return TokenMix(self.swapped.to(device), self.partner.to(device), self.weight.to(device))

    def swap(
        self, tokens: Float[Tensor, "b h w d"] | Float[Tensor, "b n d"]
    ) -> Float[Tensor, "b h w d"] | Float[Tensor, "b n d"]:
        """Mixed tokens, after the embedding and before positions are added (TL, eq. 5)."""
        swapped = self.swapped if tokens.ndim == 4 else self.swapped.flatten(1)
        return swap_places(swapped, self.partner, tokens, "tokens")

    def swap_targets(self, targets: Tensor) -> Tensor:
        """The targets [b, n, ...] of mixed tokens, of any type and trailing shape (TL, eq. 6)."""
        return swap_places(self.swapped.flatten(1), self.partner, targets, "token targets")

    def blend(self, targets: Tensor) -> Float[Tensor, "b k"]:
        """The targets [b, k] of mixed images, each class weighed by the share of tokens (TL, eq. 7)."""
        return blend(targets, self.partner, self.weight, "image targets")

    def unswap(self, token_logits: Float[Tensor, "b n k"]) -> Float[Tensor, "b n k"]:
        """The inverse of `swap`: logits back at the images they came from, for targets that were never mixed."""
        if len(self.swapped) > 1:
            raise UserError(
                f"a mix with a mask for each of {len(self.swapped)} images cannot be undone, because it may show a "
                "token twice or never; swap the targets, or draw with pairwise=False"
            )
        return swap_places(self.swapped.flatten(1), self.partner.argsort(), token_logits, "token logits")


def random_numbers(generator: torch.Generator) -> np.random.Generator:
    """NumPy's numbers, seeded by one draw: torch's beta distribution takes no generator."""
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return np.random.default_rng(int(seed))


def draw_lambdas(batch: int, random: np.random.Generator, alpha: float, pairwise: bool) -> Float[Tensor, "m"]:
    """Beta(alpha, alpha), one for the batch or one for each image."""
    if batch < 1:
        raise UserError(f"batch must be at least 1; got batch={batch}")
    check_alpha(alpha)
    return torch.from_numpy(random.beta(alpha, alpha, size=batch if pairwise else 1))


def draw_partner(batch: int, random: np.random.Generator, pairwise: bool) -> Int[Tensor, "b"]:
    """The batch reversed, or in random order, in which an image may meet itself."""
    return torch.from_numpy(random.permutation(batch)) if pairwise else torch.arange(batch - 1, -1, -1)


def numbers_of_pairs(seeds: Int[Tensor, "b"], purpose: Purpose, count: int) -> Float[Tensor, "p count"]:
    """Uniforms of each pair of neighbours, by the seed of its first image."""
    if len(seeds) == 0 or len(seeds) % 2:
        raise UserError(f"neighbours are mixed in pairs, so a batch must be even; got {len(seeds)} images")
    return uniforms(seeds[::2], purpose, count)


def neighbours(seeds: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
    """1, 0, 3, 2, 5, 4 and so on."""
    return torch.arange(len(seeds), device=seeds.device) ^ 1


def box_mask(kept: Float[Tensor, "m"], centres: Int[Tensor, "m 2"], grid: tuple[int, int]) -> Bool[Tensor, "m h w"]:
    """Cells in boxes whose sides are sqrt(1 - kept) of the grid's, in whole cells, clipped at its edges."""
    rows, columns = (
        in_span(((1 - kept).sqrt() * length).long(), centre, length)
        for centre, length in zip(centres.unbind(1), grid, strict=True)
    )
    return rows[:, :, None] & columns[:, None, :]


def in_span(side: Int[Tensor, "m"], centre: Int[Tensor, "m"], length: int) -> Bool[Tensor, "m length"]:
    """Places along one axis that `side` cells around a centre cover."""
    offset = torch.arange(length, device=side.device) - (centre - side // 2)[:, None]
    return (offset >= 0) & (offset < side[:, None])


def swap_places(swapped: Bool[Tensor, "#b ..."], partner: Int[Tensor, "b"], tensor: Tensor, name: str) -> Tensor:
    """The partner's values at the swapped places, which are the tensor's first axes."""
    check_start(tensor, (len(partner), *swapped.shape[1:]), name)
    mask = swapped.reshape(*swapped.shape, *[1] * (tensor.ndim - swapped.ndim))
    return torch.where(mask, tensor[partner], tensor)


def blend(tensor: Tensor, partner: Int[Tensor, "b"], weight: Float[Tensor, "b"], name: str) -> Tensor:
    """weight * own + (1 - weight) * partner's."""
    if tensor.ndim < 2 or not tensor.is_floating_point():
        raise UserError(
            f"{name} are blended, so they must be floating point with a value for each class or pixel; "
            f"got {by(tensor.shape)} of {tensor.dtype}"
        )
    check_start(tensor, (len(partner),), name)
    weight = weight.to(tensor.dtype).reshape(-1, *[1] * (tensor.ndim - 1))
    return weight * tensor + (1 - weight) * tensor[partner]


def check_grid(grid: tuple[int, int]) -> None:
    """Raise unless there is a cell to mix."""
    if min(grid) < 1:
        raise UserError(f"grid must have at least one row and one column; got grid={grid}")


def check_alpha(alpha: float, name: str = "alpha") -> None:
    """Raise unless Beta(alpha, alpha) is a distribution."""
    if not 0 < alpha < inf:
        raise UserError(f"{name} must be a finite number above 0; got {name}={alpha}")


def check_start(tensor: Tensor, expected: tuple[int, ...], name: str) -> None:
    """Raise unless the first axes are those of the mix."""
    if tuple(tensor.shape[: len(expected)]) != expected:
        raise UserError(f"{name} must start with {by(expected)} for this mix; got {by(tensor.shape)}")
