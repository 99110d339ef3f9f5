"""Normalising and erasing on the device."""

import random

import pytest
import torch
from timm.data.random_erasing import RandomErasing
from torchvision.transforms.v2 import functional as F

from alltokens.augment.finish import FinishConfig, finish
from alltokens.errors import UserError


def some_images(batch: int = 4) -> torch.Tensor:
    return torch.randint(0, 256, (batch, 3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_pixels_are_normalised_as_torchvision_does():
    config = FinishConfig(erase=0.0)
    expected = F.normalize(some_images().float() / 255, list(config.mean), list(config.std))
    torch.testing.assert_close(finish(some_images(), config, seeded(0)), expected)


def erased(images: torch.Tensor, config: FinishConfig, seed: int) -> torch.Tensor:
    """Which pixels [b, h, w] are not those of the plain images."""
    plain = finish(images, FinishConfig(erase=0.0), seeded(seed))
    return (finish(images, config, seeded(seed)) != plain).any(1)


def test_as_many_images_as_told_lose_a_rectangle_of_timms_sizes():
    images = some_images(2000)
    found = erased(images, FinishConfig(erase=0.25), 1)
    assert found.flatten(1).any(1).float().mean().item() == pytest.approx(0.25, abs=0.03)
    for mask in found[found.flatten(1).any(1)][:50]:
        rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
        height, width = int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1
        assert mask.sum() == height * width
    random.seed(0)
    torch.manual_seed(0)
    theirs = RandomErasing(0.25, mode="pixel", device="cpu")(torch.zeros(2000, 3, 20, 30))
    areas = [(x.flatten(1).sum(1)[x.flatten(1).any(1)]).float().mean().item() for x in (found, (theirs != 0).any(1))]
    assert areas[0] == pytest.approx(areas[1], rel=0.15)


def test_the_generator_alone_decides():
    config, before = FinishConfig(erase=1.0), (random.getstate(), torch.get_rng_state())
    one, again, other = (finish(some_images(), config, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"std": (0.2, 0.0, 0.2)}, r"^std must be above 0; got std=\(0.2, 0.0, 0.2\)$"),
        ({"erase": 1.5}, r"^erase must be between 0 and 1; got erase=1.5$"),
    ],
)
def test_bad_fields_are_refused(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        FinishConfig(**fields)
