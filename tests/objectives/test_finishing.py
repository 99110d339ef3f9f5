"""Normalising and erasing by seeds, beside torchvision's normalisation and timm's RandomErasing."""

import random

import numpy as np
import torch
from timm.data.random_erasing import RandomErasing
from torchvision.transforms.v2 import functional as F

from alltokens.augment.finish import FinishConfig
from alltokens.objectives.finishing import finish_by_seeds, noise, normalize, rectangles, row_of_noise

from ..mix.samples import distance

SEEDS = torch.arange(3000) * 7919
OTHER = FinishConfig(mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3), erase=0.0)


def some_images(batch: int = 6) -> torch.Tensor:
    return torch.randint(256, (batch, 3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_pixels_are_normalised_as_by_torchvision():
    for config in (FinishConfig(erase=0.0), OTHER):
        expected = F.normalize(some_images().float() / 255, list(config.mean), list(config.std))
        torch.testing.assert_close(normalize(some_images(), config), expected)
        torch.testing.assert_close(finish_by_seeds(some_images(), config, SEEDS[:6]), expected)


def test_what_is_erased_is_noise_and_the_rest_is_untouched():
    config = FinishConfig(erase=1.0)
    erased = rectangles(SEEDS[:6], 1.0, (20, 30))
    expected = normalize(some_images(), config)
    for image, fill in enumerate(noise(SEEDS[:6], 3 * 20 * 30).view(6, 3, 20, 30)):
        expected[image, :, erased[image]] = fill[:, erased[image]]
    assert finish_by_seeds(some_images(), config, SEEDS[:6]).equal(expected)


def boxes(masks: torch.Tensor) -> torch.Tensor:
    """Top, left, height and width of each mask that is not empty, which is a full rectangle."""
    found = []
    for mask in masks[masks.flatten(1).any(1)]:
        (top, left), (bottom, right) = mask.nonzero().amin(0).tolist(), mask.nonzero().amax(0).tolist()
        assert mask.sum() == (bottom - top + 1) * (right - left + 1)
        found.append((top, left, bottom - top + 1, right - left + 1))
    return torch.tensor(found)


def test_rectangles_have_the_places_and_sizes_of_timms():
    size = (20, 30)
    random.seed(0)
    torch.manual_seed(0)
    theirs = RandomErasing(1.0, mode="const", device="cpu")(torch.ones(len(SEEDS), 3, *size)) == 0
    ours = rectangles(SEEDS, 1.0, size)
    assert len(boxes(ours)) == len(SEEDS)
    for mine, timms in zip(boxes(ours).T, boxes(theirs[:, 0]).T, strict=True):
        # Equal distributions differ by 0.05 once in a thousand samples of this size.
        assert distance(mine.double().numpy(), timms.double().numpy()) < 0.05


def test_as_many_images_as_told_lose_a_rectangle():
    share = rectangles(SEEDS, 0.25, (20, 30)).flatten(1).any(1).double().mean()
    assert abs(share - 0.25) < 0.03


def test_noise_has_mean_0_and_deviation_1_and_hardly_differs_from_normal():
    found = row_of_noise(100_000, torch.device("cpu")).double()
    assert abs(found.mean()) < 0.01
    assert abs(found.std() - 1) < 0.01
    assert distance(found.numpy(), np.random.default_rng(0).normal(size=len(found))) < 0.02
    for lag in (1, 2, 30, 224):
        # Four standard errors.
        assert abs((found[lag:] * found[:-lag]).mean()) < 0.013


def test_every_seed_has_a_piece_of_the_noise_from_another_place_on():
    row, pieces = row_of_noise(2**16 + 100, torch.device("cpu")), noise(SEEDS, 100)
    places = [(row[: 2**16] == piece[0]).nonzero().flatten().tolist() for piece in pieces[:50]]
    for piece, found in zip(pieces[:50], places, strict=True):
        assert any(row[place : place + 100].equal(piece) for place in found)
    assert len(pieces.unique(dim=0)) > 0.95 * len(SEEDS)


def test_a_batch_may_be_split():
    config, images, seeds = FinishConfig(erase=0.5), some_images(7), SEEDS[:7]
    whole = finish_by_seeds(images, config, seeds)
    assert not whole.equal(normalize(images, config))
    split = [finish_by_seeds(images[part], config, seeds[part]) for part in (slice(3), slice(3, 4), slice(4, 7))]
    assert torch.cat(split).equal(whole)


def test_an_empty_batch_stays_empty():
    assert normalize(some_images(0), FinishConfig()).shape == (0, 3, 20, 30)
