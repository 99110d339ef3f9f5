"""Random numbers that seeds alone decide, for many seeds at once and where they are: whole numbers hashed, no state."""

from enum import IntEnum
from math import pi

import torch
from torch import Tensor

from alltokens.shapes import Float, Int


class Purpose(IntEnum):
    """What numbers are for: the same seed has others for each."""

    MIX = 1
    CHOICE = 2
    PARTICIPATION = 3
    ERASE = 4
    NOISE = 5
    BLEND = 6


def wrapped(number: int) -> int:
    """64 bits as torch's signed integers write them."""
    return (number + 2**63) % 2**64 - 2**63


STEP = wrapped(0x9E3779B97F4A7C15)
FACTORS = wrapped(0xBF58476D1CE4E5B9), wrapped(0x94D049BB133111EB)


def random_bits(seeds: Int[Tensor, " m"], purpose: Purpose, count: int) -> Int[Tensor, "m count"]:
    """64 random bits each, by seed, purpose and place."""
    start = scramble(seeds + wrapped(STEP * purpose))
    # Places are scrambled too: torch.compile would work out a product of them itself, and in 32 bits.
    return scramble(start[:, None] + scramble(torch.arange(1, count + 1, device=seeds.device)))


def scramble(bits: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """What splitmix64 does to its counter: every bit then depends on all."""
    bits = (bits ^ shifted(bits, 30)) * FACTORS[0]
    bits = (bits ^ shifted(bits, 27)) * FACTORS[1]
    return bits ^ shifted(bits, 31)


def shifted(bits: Int[Tensor, "..."], places: int) -> Int[Tensor, "..."]:
    """To the right, zeros following; torch's own shift repeats the sign."""
    return (bits >> places) & (2 ** (64 - places) - 1)


def uniforms(seeds: Int[Tensor, " m"], purpose: Purpose, count: int) -> Float[Tensor, "m count"]:
    """Between 0 and 1, neither included, in float64.

    Elementary functions of them may differ in the last bit with the size of a batch; float32 and whole numbers made
    from the results do not.
    """
    return (shifted(random_bits(seeds, purpose, count), 12).double() + 0.5) * 2.0**-52


def symmetric_beta(first: Float[Tensor, " m"], second: Float[Tensor, " m"], alpha: float) -> Float[Tensor, " m"]:
    """Beta(alpha, alpha) from two uniforms: a function of Student's t, which has a closed form (Bailey, 1994)."""
    if alpha == 1.0:
        return first
    exponent = first.log() / alpha
    near, far = exponent.exp(), -torch.expm1(exponent)
    cosine = (2 * pi * second).cos()
    return (1 + cosine * (far / (near + far * cosine.square())).sqrt()).clamp(0, 2) / 2
