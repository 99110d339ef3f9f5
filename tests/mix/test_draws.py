"""Random numbers by seeds: beside Python's integers, and their distributions."""

import numpy as np
import pytest
import torch

from alltokens.mix.draws import STEP, Purpose, random_bits, scramble, symmetric_beta, uniforms

from .samples import distance

SEEDS = torch.tensor([0, 1, 2**63 - 1, 12345678901234567, 42])
MASK = 2**64 - 1


def scrambled(bits: int) -> int:
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def test_numbers_are_scrambled_as_by_splitmix64_whose_first_numbers_for_a_seed_are_known():
    states = torch.tensor([1234567]) + torch.tensor([1, 2]) * STEP
    expected = [6457827717110365317, 3203168211198807973]
    assert [bits & MASK for bits in scramble(states).tolist()] == expected
    assert [scrambled(state & MASK) for state in states.tolist()] == expected


@pytest.mark.parametrize("purpose", Purpose)
def test_bits_are_those_of_pythons_integers(purpose):
    for seed, row in zip(SEEDS.tolist(), random_bits(SEEDS, purpose, 7).tolist(), strict=True):
        start = scrambled((seed + 0x9E3779B97F4A7C15 * purpose) & MASK)
        assert [bits & MASK for bits in row] == [scrambled((start + scrambled(n)) & MASK) for n in range(1, 8)]


def test_uniforms_are_the_first_52_bits():
    bits = random_bits(SEEDS, Purpose.MIX, 4)
    for row, expected in zip(uniforms(SEEDS, Purpose.MIX, 4).tolist(), bits.tolist(), strict=True):
        assert row == [((number & MASK) // 2**12 + 0.5) / 2**52 for number in expected]


def test_purposes_and_seeds_have_numbers_of_their_own():
    found = torch.cat([uniforms(torch.arange(50), purpose, 20).flatten() for purpose in Purpose])
    assert len(found.unique()) == len(found)


def test_uniforms_of_neighbouring_seeds_are_independent_and_uniform():
    found = uniforms(torch.arange(20000), Purpose.MIX, 4).numpy()
    even = (np.arange(20000) + 0.5) / 20000
    for column in found.T:
        assert distance(column, even) < 0.014
    correlations = np.corrcoef(np.vstack((found.T[:, :-1], found.T[:, 1:]))) - np.eye(8)
    # Four standard errors.
    assert np.abs(correlations).max() < 0.03


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.5, 0.8, 1.0, 1.5, 4.0, 1e3])
def test_the_symmetric_beta_is_numpys(alpha):
    count = 40000
    found = symmetric_beta(*uniforms(torch.arange(count), Purpose.MIX, 2).unbind(1), alpha).numpy()
    expected = np.random.default_rng(0).beta(alpha, alpha, count)
    assert ((found >= 0) & (found <= 1)).all()
    # Equal distributions differ by 0.014 once in a thousand samples of this size; next to 0 NumPy is more exact.
    assert distance(found.round(12), expected.round(12)) < 0.014
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(found.var() - variance) < 0.03 * variance


@pytest.mark.parametrize("alpha", [1e-3, 0.8, 1e3])
def test_the_symmetric_beta_is_a_share_at_the_ends_of_the_uniforms(alpha):
    ends = torch.tensor([2.0**-53, 0.25, 0.5, 0.75, 1 - 2.0**-53], dtype=torch.float64)
    found = symmetric_beta(ends.repeat(5), ends.repeat_interleave(5), alpha)
    assert ((found >= 0) & (found <= 1)).all()
