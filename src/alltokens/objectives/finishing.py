"""Pixels as the model takes them, each image erased by its own seed: a batch comes out the same however it is split."""

from math import log, sqrt

import torch
from torch import Tensor

from alltokens.augment.finish import FinishConfig
from alltokens.mix.draws import Purpose, random_bits, uniforms
from alltokens.mix.token_mix import in_span
from alltokens.shapes import Bool, Float, Int, UInt8

TRIES = 10
"""Rectangles that are drawn for an image until one fits into it, as by timm."""
PLACES = 2**16
"""Where the noise of an image may begin."""
LEAST_AREA, MOST_AREA, LEAST_ASPECT = 0.02, 1 / 3, 0.3


def normalize(images: UInt8[Tensor, "b 3 h w"], config: FinishConfig) -> Float[Tensor, "b 3 h w"]:
    """Each channel less its mean, over its deviation."""
    # With plain numbers, because tensors of them would be copied to the device, and waited for, in every step.
    channels = zip(images.unbind(1), config.mean, config.std, strict=True)
    return torch.stack([(channel / 255 - mean) / std for channel, mean, std in channels], 1)


def finish_by_seeds(
    images: UInt8[Tensor, "b 3 h w"], config: FinishConfig, seeds: Int[Tensor, " b"]
) -> Float[Tensor, "b 3 h w"]:
    """Normalised, then a rectangle of some images filled with noise."""
    finished = normalize(images, config)
    if config.erase == 0:
        return finished
    erased = rectangles(seeds, config.erase, (images.shape[2], images.shape[3]))
    return torch.where(erased[:, None], noise(seeds, images.shape[1:].numel()).view_as(finished), finished)


def rectangles(seeds: Int[Tensor, " b"], chance: float, size: tuple[int, int]) -> Bool[Tensor, "b h w"]:
    """Pixels to erase: rectangles of the areas and aspects of timm's RandomErasing."""
    height, width = size
    numbers = uniforms(seeds, Purpose.ERASE, 3 + 2 * TRIES)
    happens, down, across = numbers[:, :3].unbind(1)
    areas, aspects = numbers[:, 3:].chunk(2, 1)
    areas = (LEAST_AREA + (MOST_AREA - LEAST_AREA) * areas) * height * width
    aspects = (log(LEAST_ASPECT) * (1 - 2 * aspects)).exp()
    heights, widths = (areas * aspects).sqrt().round().long(), (areas / aspects).sqrt().round().long()
    fits = (heights < height) & (widths < width)
    first = fits.int().argmax(1, keepdim=True)
    tall, broad = heights.gather(1, first)[:, 0], widths.gather(1, first)[:, 0]
    top, left = (down * (height - tall + 1)).long(), (across * (width - broad + 1)).long()
    rows, columns = in_span(tall, top + tall // 2, height), in_span(broad, left + broad // 2, width)
    return rows[:, :, None] & columns[:, None, :] & ((happens < chance) & fits.any(1))[:, None, None]


def noise(seeds: Int[Tensor, " b"], count: int) -> Float[Tensor, "b count"]:
    """A piece of one long row of noise for each seed; a hash for each pixel would take 50 times as long on a CPU."""
    places = (uniforms(seeds, Purpose.NOISE, 1)[:, 0] * PLACES).long()
    return row_of_noise(PLACES + count, seeds.device).unfold(0, count, 1)[places]


def row_of_noise(length: int, device: torch.device) -> Float[Tensor, " length"]:
    """Sums of four numbers of 16 bits, with mean 0 and deviation 1: normal enough, and the same on every device."""
    bits = random_bits(torch.zeros(1, dtype=torch.int64, device=device), Purpose.NOISE, length)[0]
    first, second, third, fourth = ((bits >> places) & 0xFFFF for places in (0, 16, 32, 48))
    return (first + second + third + fourth - 2 * 0xFFFF).float() / sqrt((2**32 - 1) / 3)
