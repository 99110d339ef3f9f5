"""Mixes of neighbours that seeds decide: boxes, lambdas, and that a batch may be split."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alltokens.errors import UserError
from alltokens.mix.pixel_mix import PixelMix
from alltokens.mix.token_mix import TokenMix, box_mask

from .samples import distance, normal, probabilities, seeded

GRID, SIZE = (3, 5), (12, 20)


def some_seeds(batch: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(2**63 - 1, (batch,), generator=seeded(seed))


WAYS = {
    "tokens": lambda seeds, alpha=1.0: TokenMix.of_pairs(seeds, GRID, alpha),
    "cutmix": lambda seeds, alpha=1.0: PixelMix.cutmix_of_pairs(seeds, GRID, alpha),
    "mixup": lambda seeds, alpha=1.0: PixelMix.mixup_of_pairs(seeds, alpha),
}
WAY = pytest.mark.parametrize("way", WAYS)


def parts(mix: TokenMix | PixelMix) -> list[torch.Tensor]:
    return [part for part in (mix.swapped, mix.weight) if part is not None]


@WAY
def test_neighbours_are_each_others_partners(way):
    assert WAYS[way](some_seeds(6)).partner.tolist() == [1, 0, 3, 2, 5, 4]


@WAY
@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_both_images_of_a_pair_have_one_box_and_other_pairs_another(way, alpha):
    for part in parts(WAYS[way](some_seeds(40), alpha)):
        assert part[::2].equal(part[1::2])
        assert len(part[::2].unique(dim=0)) > 5


@WAY
def test_the_seed_of_the_first_image_alone_decides(way):
    seeds = some_seeds(8)
    others = torch.where(torch.arange(8) % 2 == 1, some_seeds(8, 1), seeds)
    assert all(map(torch.equal, parts(WAYS[way](seeds)), parts(WAYS[way](others))))
    assert not all(map(torch.equal, parts(WAYS[way](seeds)), parts(WAYS[way](seeds.roll(1)))))


@WAY
@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_a_batch_split_into_whole_pairs_has_the_same_mix(way, alpha):
    seeds = some_seeds(134)
    whole = parts(WAYS[way](seeds, alpha))
    for size in (2, 10, 66):
        split = [parts(WAYS[way](some, alpha)) for some in seeds.split(size)]
        assert all(torch.cat(pieces).equal(part) for pieces, part in zip(zip(*split, strict=True), whole, strict=True))


def test_swapping_twice_restores_tokens_and_pixels():
    seeds = some_seeds(32)
    tokens, images = normal(32, 15, 2), normal(32, 3, *SIZE)
    for mix, values in ((WAYS["tokens"](seeds), tokens), (WAYS["cutmix"](seeds), images)):
        assert not mix.swap(values).equal(values)
        assert mix.swap(mix.swap(values)).equal(values)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 1000),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    alpha=st.sampled_from([1e-3, 0.2, 1.0, 5.0, 1e3]),
)
def test_every_mix_is_a_box_whose_complement_is_the_weight(seed, grid, alpha):
    mix = TokenMix.of_pairs(some_seeds(4, seed), grid, alpha)
    for mask, weight in zip(mix.swapped, mix.weight, strict=True):
        rows, columns = int(mask.any(1).sum()), int(mask.any(0).sum())
        assert rows * columns == mask.sum()
        assert weight == np.float32((grid[0] * grid[1] - rows * columns) / (grid[0] * grid[1]))


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_areas_are_distributed_as_those_that_a_generator_draws(alpha):
    grid, count = (96, 112), 6000
    found = TokenMix.of_pairs(torch.arange(2 * count), grid, alpha).weight[::2].double().numpy()
    expected = TokenMix.draw(count, grid, seeded(), alpha, pairwise=True).weight.double().numpy()
    # Equal distributions differ by 0.036 once in a thousand samples of this size.
    assert distance(found, expected) < 0.036


def test_centres_are_uniform_over_the_grid():
    grid, count = (4, 6), 40000
    found = TokenMix.of_pairs(torch.arange(2 * count), grid).swapped[::2].double().mean(0)
    lambdas = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000  # Beta(1, 1) is uniform
    centres = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1]))
    expected = box_mask(lambdas.repeat_interleave(len(centres)), centres.repeat(len(lambdas), 1), grid)
    # Four standard errors of a share among this many.
    torch.testing.assert_close(found, expected.double().mean(0), rtol=0, atol=0.01)


@pytest.mark.parametrize("alpha", [0.1, 0.8, 1.0, 3.0])
def test_lambdas_of_mixup_follow_the_beta_distribution(alpha):
    found = PixelMix.mixup_of_pairs(torch.arange(40000), alpha).weight[::2].double().numpy()
    expected = np.random.default_rng(0).beta(alpha, alpha, 20000)
    assert distance(found, expected.astype(np.float32)) < 0.02


@WAY
def test_only_some_images_may_be_mixed(way):
    mix, mixed = WAYS[way](some_seeds(20)), torch.arange(20) % 4 < 2
    some = mix.only(mixed)
    shape = (15, 2) if way == "tokens" else (3, *SIZE)
    values, targets = normal(20, *shape), probabilities(20, 7)
    expected = [torch.where(mixed.view(-1, *[1] * len(shape)), mix.swap(values), values)]
    expected += [torch.where(mixed[:, None], mix.blend(targets), targets)]
    assert some.swap(values).equal(expected[0])
    assert some.blend(targets).equal(expected[1])
    assert some.partner.equal(mix.partner)


def refused(sentence: str):
    return pytest.raises(UserError, match=f"^{re.escape(sentence)}$")


@WAY
@pytest.mark.parametrize("batch", [0, 1, 7])
def test_an_odd_batch_is_refused(way, batch):
    with refused(f"neighbours are mixed in pairs, so a batch must be even; got {batch} images"):
        WAYS[way](some_seeds(batch))


@WAY
@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_an_alpha_without_a_distribution_is_refused(way, alpha):
    with refused(f"alpha must be a finite number above 0; got alpha={alpha}"):
        WAYS[way](some_seeds(2), alpha)


@pytest.mark.parametrize("draw", [TokenMix.of_pairs, PixelMix.cutmix_of_pairs])
def test_a_grid_without_cells_is_refused(draw):
    with refused("grid must have at least one row and one column; got grid=(3, 0)"):
        draw(some_seeds(2), (3, 0))
