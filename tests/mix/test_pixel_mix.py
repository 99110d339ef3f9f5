"""CutMix and Mixup: pixels, token targets and image targets, beside timm's and beside loops."""

import re
from fractions import Fraction
from itertools import product
from math import floor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.data.mixup import Mixup, cutmix_bbox_and_lam
from torch import Tensor

from alltokens.errors import UserError
from alltokens.mix.pixel_mix import PixelMix
from alltokens.mix.token_mix import TokenMix

from ..kinds import TINY, images_for, lively
from .samples import distance, integers, normal, probabilities, seeded

BATCH, GRID, SIZE, CLASSES = 4, (3, 5), (12, 20), 7
TOKENS = GRID[0] * GRID[1]
PAIRWISE = pytest.mark.parametrize("pairwise", [False, True])


def partial_cutmix(pairwise: bool, grid: tuple[int, int] = GRID) -> PixelMix:
    """The first CutMix whose boxes leave no image whole and take none over."""
    draws = (PixelMix.cutmix(BATCH, grid, seeded(seed), pairwise=pairwise) for seed in range(1000))
    return next(mix for mix in draws if ((mix.weight > 0) & (mix.weight < 1)).all())


@PAIRWISE
@pytest.mark.parametrize("size", [SIZE, (3, 5), (13, 22)])
def test_cut_images_are_those_of_a_loop_over_pixels(pairwise, size):
    mix, images = partial_cutmix(pairwise), normal(BATCH, 3, *size)
    expected = images.clone()
    masks = mix.swapped.expand(BATCH, *GRID)
    for image, i, j in product(range(BATCH), range(size[0]), range(size[1])):
        row, column = (
            floor((Fraction(place) + Fraction(1, 2)) * cells / pixels)
            for place, cells, pixels in ((i, GRID[0], size[0]), (j, GRID[1], size[1]))
        )
        if masks[image, row, column]:
            expected[image, :, i, j] = images[int(mix.partner[image]), :, i, j]
    assert not expected.equal(images)
    assert mix.swap(images).equal(expected)


@PAIRWISE
def test_token_targets_move_with_the_cells_of_the_grid(pairwise):
    mix, targets = partial_cutmix(pairwise), integers(BATCH, TOKENS, 2)
    expected = targets.clone()
    for image, token in product(range(BATCH), range(TOKENS)):
        if mix.swapped.expand(BATCH, *GRID)[image].flatten()[token]:
            expected[image, token] = targets[int(mix.partner[image]), token]
    assert mix.swap_targets(targets).equal(expected)


@PAIRWISE
def test_cutting_pixels_on_the_grid_is_swapping_the_tokens_of_patches(pairwise):
    model, images = lively(TINY), images_for(TINY, BATCH)
    mix = partial_cutmix(pairwise, TINY.grid)
    tokens = TokenMix(mix.swapped, mix.partner, mix.weight).swap(model.embed(images))
    torch.testing.assert_close(model.embed(mix.swap(images)), tokens)


@PAIRWISE
def test_mixup_blends_images_and_both_kinds_of_targets_by_lambda(pairwise):
    mix = PixelMix.mixup(BATCH, seeded(), pairwise=pairwise)
    images, token_targets = normal(BATCH, 3, *SIZE), probabilities(BATCH, TOKENS, CLASSES)
    image_targets = probabilities(BATCH, CLASSES)
    mixed = (mix.swap(images), mix.swap_targets(token_targets), mix.blend(image_targets))
    for before, after in zip((images, token_targets, image_targets), mixed, strict=True):
        for image in range(BATCH):
            kept, partner = mix.weight[image].item(), int(mix.partner[image])
            torch.testing.assert_close(after[image], kept * before[image] + (1 - kept) * before[partner])


@PAIRWISE
@pytest.mark.parametrize("kind", ["cutmix", "mixup"])
def test_mixed_targets_sum_to_one(kind, pairwise):
    mix = partial_cutmix(pairwise) if kind == "cutmix" else PixelMix.mixup(BATCH, seeded(), pairwise=pairwise)
    for mixed in (mix.blend(probabilities(BATCH, CLASSES)), mix.swap_targets(probabilities(BATCH, TOKENS, CLASSES))):
        sums = mixed.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-12)


def test_blended_targets_give_the_blend_of_the_losses():
    mix = PixelMix.mixup(BATCH, seeded(), pairwise=True)
    targets, logits = probabilities(BATCH, TOKENS, CLASSES), normal(BATCH, TOKENS, CLASSES)

    def losses(targets: Tensor) -> Tensor:
        return -(targets * logits.log_softmax(-1)).sum(-1).mean(1)

    weight = mix.weight.double()
    expected = weight * losses(targets) + (1 - weight) * losses(targets[mix.partner])
    torch.testing.assert_close(losses(mix.swap_targets(targets)), expected, rtol=0, atol=1e-12)


def box(image_size: tuple[int, int], edges: tuple[int, int, int, int]) -> Tensor:
    """The mask of timm's box."""
    top, bottom, left, right = edges
    mask = torch.zeros(image_size, dtype=torch.bool)
    mask[top:bottom, left:right] = True
    return mask


@pytest.mark.parametrize("mode", ["batch", "elem"])
@pytest.mark.parametrize("kind", ["cutmix", "mixup"])
@pytest.mark.parametrize("seed", range(5))
def test_images_and_targets_are_those_of_timm_for_the_same_draws(kind, mode, seed):
    timm_mix = Mixup(
        mixup_alpha=float(kind == "mixup"),
        cutmix_alpha=float(kind == "cutmix"),
        mode=mode,
        label_smoothing=0.0,
        num_classes=CLASSES,
    )
    images, classes = normal(BATCH, 3, *SIZE).float(), integers(BATCH, below=CLASSES)
    np.random.seed(seed)
    expected_images, expected_targets = timm_mix(images.clone(), classes)

    np.random.seed(seed)
    lambdas = [timm_mix._params_per_batch()[0]] if mode == "batch" else timm_mix._params_per_elem(BATCH)[0].tolist()
    swapped, weight = None, torch.tensor(lambdas)
    if kind == "cutmix":
        boxes = [cutmix_bbox_and_lam(images.shape, kept) for kept in lambdas]
        swapped = torch.stack([box(SIZE, edges) for edges, _ in boxes])
        weight = (~swapped).float().mean((1, 2))
        torch.testing.assert_close(weight, torch.tensor([corrected for _, corrected in boxes], dtype=torch.float32))
    mix = PixelMix(swapped, torch.arange(BATCH).flip(0), weight.expand(BATCH))
    torch.testing.assert_close(mix.swap(images), expected_images)
    torch.testing.assert_close(mix.blend(torch.eye(CLASSES)[classes]), expected_targets)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), height=st.integers(1, 40), width=st.integers(1, 40), pairwise=st.booleans())
def test_without_a_grid_the_weight_is_the_area_that_survives_clipping(seed, height, width, pairwise):
    mix = PixelMix.cutmix(2, (height, width), seeded(seed), pairwise=pairwise)
    black_and_white = torch.stack([torch.zeros(1, height, width), torch.ones(1, height, width)])
    mixed = mix.swap(black_and_white).double().mean((1, 2, 3))
    other = mix.partner.tolist() == [1, 0]
    for image, weight in enumerate(mix.weight.double()):
        share = abs(mixed[image] - image)
        assert abs(share - (1 - weight if other else 0)) < 1e-6


@pytest.mark.parametrize("alpha", [0.1, 0.8, 1.0, 3.0])
def test_lambdas_are_distributed_as_those_of_timm(alpha):
    count = 20000
    found = PixelMix.mixup(count, seeded(), alpha, pairwise=True).weight.double().numpy()
    np.random.seed(0)
    expected, _ = Mixup(mixup_alpha=alpha, mode="elem")._params_per_elem(count)
    # Equal distributions differ by 0.02 once in a thousand samples of this size, half or twice alpha by 0.08.
    assert distance(found, expected) < 0.02
    assert abs(found.var() - 1 / (4 * (2 * alpha + 1))) < 0.003


@PAIRWISE
def test_a_box_on_a_grid_is_the_one_that_tokens_would_have(pairwise):
    pixels = PixelMix.cutmix(BATCH, GRID, seeded(), 0.7, pairwise)
    tokens = TokenMix.draw(BATCH, GRID, seeded(), 0.7, pairwise)
    assert all(getattr(pixels, name).equal(getattr(tokens, name)) for name in ("swapped", "partner", "weight"))


def test_one_lambda_serves_the_batch_and_the_partner_is_the_batch_reversed():
    mix = PixelMix.mixup(BATCH, seeded())
    assert len(set(mix.weight.tolist())) == 1
    assert mix.partner.tolist() == [3, 2, 1, 0]


def test_pairwise_mixup_draws_a_lambda_and_a_partner_for_each_image():
    mixes = [PixelMix.mixup(3, seeded(seed), pairwise=True) for seed in range(100)]
    assert all(len(set(mix.weight.tolist())) == 3 for mix in mixes)
    assert len({tuple(mix.partner.tolist()) for mix in mixes}) == 6


def test_the_state_of_the_generator_decides_the_lambda():
    generator = seeded(3)
    first, second = (PixelMix.mixup(BATCH, generator) for _ in range(2))
    assert first.weight.equal(PixelMix.mixup(BATCH, seeded(3)).weight)
    assert not first.weight.equal(second.weight)


@pytest.mark.parametrize("mix", [PixelMix.cutmix(1, GRID, seeded()), PixelMix.mixup(1, seeded())])
def test_a_single_image_is_its_own_partner(mix):
    images = normal(1, 3, *SIZE)
    torch.testing.assert_close(mix.swap(images), images)


@pytest.mark.parametrize("mix", [PixelMix.cutmix(BATCH, GRID, seeded()), PixelMix.mixup(BATCH, seeded())])
def test_a_mix_moves_to_a_device(mix):
    moved = mix.to("meta")
    assert moved.swap(torch.empty(BATCH, 3, *SIZE, device="meta")).shape == (BATCH, 3, *SIZE)
    assert moved.blend(torch.empty(BATCH, CLASSES, device="meta")).shape == (BATCH, CLASSES)


@PAIRWISE
@pytest.mark.parametrize("kind", ["cutmix", "mixup"])
def test_images_keep_their_memory_layout(kind, pairwise):
    mix = partial_cutmix(pairwise) if kind == "cutmix" else PixelMix.mixup(BATCH, seeded(), pairwise=pairwise)
    for layout in (torch.contiguous_format, torch.channels_last):
        images = normal(BATCH, 3, *SIZE).contiguous(memory_format=layout)
        assert mix.swap(images).is_contiguous(memory_format=layout)


def refused(sentence: str):
    return pytest.raises(UserError, match=f"^{re.escape(sentence)}$")


@pytest.mark.parametrize("kind", ["cutmix", "mixup"])
def test_another_batch_is_refused(kind):
    mix = PixelMix.cutmix(BATCH, GRID, seeded()) if kind == "cutmix" else PixelMix.mixup(BATCH, seeded())
    start = "4 x 3 x 12 x 20" if kind == "cutmix" else "4"
    with refused(f"images must start with {start} for this mix; got 3 x 3 x 12 x 20"):
        mix.swap(torch.zeros(3, 3, *SIZE))
    with refused("image targets must start with 4 for this mix; got 3 x 7"):
        mix.blend(torch.zeros(3, CLASSES))


def test_token_targets_of_another_grid_are_refused():
    with refused("token targets must start with 4 x 240 for this mix; got 4 x 15 x 7"):
        PixelMix.cutmix(BATCH, SIZE, seeded()).swap_targets(probabilities(BATCH, TOKENS, CLASSES))


def test_images_with_fewer_pixels_than_cells_are_refused():
    with refused("images must have at least a pixel for each cell of the mix; got 12 x 4 pixels for 3 x 5 cells"):
        PixelMix.cutmix(BATCH, GRID, seeded()).swap(torch.zeros(BATCH, 3, 12, 4))


def test_mixup_of_class_ids_is_refused():
    with refused(
        "token targets are blended, so they must be floating point with a value for each class or pixel; "
        "got 4 x 15 of torch.int64"
    ):
        PixelMix.mixup(BATCH, seeded()).swap_targets(torch.zeros(BATCH, TOKENS, dtype=torch.int64))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"batch": 0}, "batch must be at least 1; got batch=0"),
        ({"alpha": 0.0}, "alpha must be a finite number above 0; got alpha=0.0"),
    ],
)
def test_a_mixup_that_cannot_be_drawn_is_refused(arguments, sentence):
    with refused(sentence):
        PixelMix.mixup(**({"batch": 2, "generator": seeded()} | arguments))
