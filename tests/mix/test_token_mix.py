"""MixToken: the boxes that are drawn, and what they do to tokens, token targets and image targets."""

import re
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.data.mixup import Mixup, rand_bbox
from torch import Tensor

from alltokens.errors import UserError
from alltokens.mix.token_mix import TokenMix, box_mask

from .samples import distance, integers, normal, probabilities, seeded

BATCH, GRID = 4, (3, 5)
TOKENS = GRID[0] * GRID[1]
PAIRWISE = pytest.mark.parametrize("pairwise", [False, True])


def partial_mix(pairwise: bool, batch: int = BATCH, grid: tuple[int, int] = GRID) -> TokenMix:
    """The first mix whose boxes leave no image whole and take none over."""
    draws = (TokenMix.draw(batch, grid, seeded(seed), pairwise=pairwise) for seed in range(1000))
    return next(mix for mix in draws if ((mix.weight > 0) & (mix.weight < 1)).all())


def swapped_by_loops(mix: TokenMix, values: Tensor) -> Tensor:
    """Values [b, n, ...] one token after the other, row by row."""
    batch, (h, w) = len(mix.partner), mix.swapped.shape[1:]
    mixed = values.clone()
    for image, row, column in product(range(batch), range(h), range(w)):
        own_mask = mix.swapped[image if len(mix.swapped) > 1 else 0]
        if own_mask[row, column]:
            mixed[image, row * w + column] = values[int(mix.partner[image]), row * w + column]
    return mixed


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return -(targets * logits.log_softmax(-1)).sum(-1).mean()


@PAIRWISE
def test_swapped_tokens_are_those_of_a_loop(pairwise):
    mix, tokens = partial_mix(pairwise), normal(BATCH, TOKENS, 6)
    expected = swapped_by_loops(mix, tokens)
    assert not expected.equal(tokens)
    assert mix.swap(tokens).equal(expected)
    assert mix.swap(tokens.unflatten(1, GRID)).equal(expected.unflatten(1, GRID))


@PAIRWISE
@pytest.mark.parametrize("trailing", [(), (7,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bool])
def test_targets_of_any_type_and_trailing_shape_move_with_their_tokens(pairwise, trailing, dtype):
    mix, targets = partial_mix(pairwise), integers(BATCH, TOKENS, *trailing).to(dtype)
    swapped = mix.swap_targets(targets)
    assert swapped.dtype == dtype
    assert swapped.equal(swapped_by_loops(mix, targets))


@PAIRWISE
def test_sparse_targets_swapped_part_by_part_are_the_dense_ones_swapped(pairwise):
    mix, classes = partial_mix(pairwise), 50
    ids = torch.rand(BATCH, TOKENS, classes, generator=seeded(2)).argsort(-1)[..., :4]
    values = probabilities(BATCH, TOKENS, 4)
    dense = torch.zeros(BATCH, TOKENS, classes, dtype=torch.float64)
    swapped = dense.scatter(-1, mix.swap_targets(ids), mix.swap_targets(values))
    assert swapped.equal(mix.swap_targets(dense.scatter(-1, ids, values)))


@PAIRWISE
def test_gradients_return_to_the_image_that_a_token_came_from(pairwise):
    mix = partial_mix(pairwise)
    tokens = normal(BATCH, *GRID, 2).requires_grad_()
    assert torch.autograd.gradcheck(mix.swap, tokens)


@PAIRWISE
def test_image_targets_are_weighed_by_the_share_of_tokens(pairwise):
    mix, targets = partial_mix(pairwise), probabilities(BATCH, 7)
    blended = mix.blend(targets)
    for image in range(BATCH):
        share = 1 - mix.swapped.expand(BATCH, -1, -1)[image].sum().item() / TOKENS
        expected = share * targets[image] + (1 - share) * targets[int(mix.partner[image])]
        torch.testing.assert_close(blended[image], expected, rtol=1e-6, atol=1e-7)


@PAIRWISE
def test_mixed_targets_sum_to_one(pairwise):
    mix = partial_mix(pairwise)
    for mixed in (mix.blend(probabilities(BATCH, 7)), mix.swap_targets(probabilities(BATCH, TOKENS, 7))):
        sums = mixed.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-12)


def test_mixing_the_targets_is_unmixing_the_logits():
    mix, targets = partial_mix(pairwise=False), probabilities(BATCH, TOKENS, 7)
    logits = normal(BATCH, TOKENS, 7)
    mixed = cross_entropy(logits, mix.swap_targets(targets))
    assert abs(mixed - cross_entropy(mix.unswap(logits), targets)) < 1e-12
    assert abs(mixed - cross_entropy(logits, targets)) > 1e-3


def test_unmixing_undoes_a_shared_mask_for_any_order_of_partners():
    mask = partial_mix(pairwise=False).swapped
    tokens = normal(BATCH, TOKENS, 7)
    for partner in ([3, 2, 1, 0], [1, 2, 3, 0], [0, 1, 2, 3], [2, 0, 3, 1]):
        mix = TokenMix(mask, torch.tensor(partner), (~mask).float().mean((1, 2)).expand(BATCH))
        assert mix.unswap(mix.swap(tokens)).equal(tokens)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    batch=st.integers(1, 5),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    alpha=st.sampled_from([1e-3, 0.2, 1.0, 5.0, 1e3]),
    pairwise=st.booleans(),
)
def test_every_mix_is_a_clipped_box_whose_complement_is_the_weight(seed, batch, grid, alpha, pairwise):
    mix = TokenMix.draw(batch, grid, seeded(seed), alpha, pairwise)
    assert mix.swapped.shape == (batch if pairwise else 1, *grid)
    assert sorted(mix.partner.tolist()) == list(range(batch))
    for mask, weight in zip(mix.swapped.expand(batch, *grid), mix.weight, strict=True):
        places = mask.nonzero()
        sides = places.amax(0) - places.amin(0) + 1 if len(places) else torch.zeros(2)
        area = int(sides.prod())
        assert area == len(places)
        assert weight == np.float32((grid[0] * grid[1] - area) / (grid[0] * grid[1]))


@pytest.mark.parametrize("grid", [(14, 14), (7, 12), (1, 3)])
def test_boxes_are_those_of_the_definition(grid):
    h, w = grid
    for kept in (0.0, 0.3, 0.75, 0.99, 1.0):
        side_rows, side_columns = int(h * np.sqrt(1 - kept)), int(w * np.sqrt(1 - kept))
        for y, x in product(range(h), range(w)):
            expected = torch.zeros(h, w, dtype=torch.bool)
            for i, j in product(range(side_rows), range(side_columns)):
                row, column = y - side_rows // 2 + i, x - side_columns // 2 + j
                if 0 <= row < h and 0 <= column < w:
                    expected[row, column] = True
            found = box_mask(torch.tensor([kept], dtype=torch.float64), torch.tensor([[y, x]]), grid)
            assert found[0].equal(expected)


def test_boxes_are_those_of_timm_for_the_same_lambda_and_centre():
    grid, random = (24, 36), np.random.RandomState(0)
    for seed, kept in enumerate(random.beta(1, 1, 300)):
        np.random.seed(seed)
        top, bottom, left, right = rand_bbox(grid, kept)
        np.random.seed(seed)
        centre = torch.tensor([[np.random.randint(grid[0]), np.random.randint(grid[1])]])
        found = box_mask(torch.tensor([kept], dtype=torch.float64), centre, grid)[0]
        sides = [int(length * np.sqrt(1 - kept)) for length in grid]
        if 0 in sides:
            assert not found.any()
            continue
        rows, columns = (found.any(axis).nonzero() for axis in (1, 0))
        # Earlier releases of timm make an odd side even, at the far end.
        assert (top, left) == (rows.min(), columns.min())
        assert bottom in (rows.max(), rows.max() + 1)
        assert right in (columns.max(), columns.max() + 1)
        if sides[0] % 2 == 0 and sides[1] % 2 == 0:
            assert (bottom, right) == (rows.max() + 1, columns.max() + 1)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_areas_are_distributed_as_those_of_timm(alpha):
    grid, count = (96, 112), 6000
    found = TokenMix.draw(count, grid, seeded(), alpha, pairwise=True).weight.double().numpy()
    np.random.seed(0)
    lambdas, _ = Mixup(mixup_alpha=0.0, cutmix_alpha=alpha, mode="elem")._params_per_elem(count)
    expected = []
    for kept in lambdas:
        top, bottom, left, right = rand_bbox(grid, kept)
        expected.append(1 - (bottom - top) * (right - left) / (grid[0] * grid[1]))
    # Equal distributions differ by 0.036 once in a thousand samples of this size, sides of 1 - lambda by 0.15.
    assert distance(found, np.array(expected)) < 0.036


def test_centres_are_uniform_over_the_grid():
    grid, count = (4, 6), 40000
    found = TokenMix.draw(count, grid, seeded(), pairwise=True).swapped.double().mean(0)
    lambdas = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000  # Beta(1, 1) is uniform
    centres = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1]))
    expected = box_mask(lambdas.repeat_interleave(len(centres)), centres.repeat(len(lambdas), 1), grid)
    # Four standard errors of a share among this many.
    torch.testing.assert_close(found, expected.double().mean(0), rtol=0, atol=0.01)


@PAIRWISE
def test_the_state_of_the_generator_decides_the_mix(pairwise):
    generator = seeded(3)
    first, second = (TokenMix.draw(16, (14, 14), generator, pairwise=pairwise) for _ in range(2))
    again = TokenMix.draw(16, (14, 14), seeded(3), pairwise=pairwise)
    assert all(getattr(first, name).equal(getattr(again, name)) for name in ("swapped", "partner", "weight"))
    assert not first.swapped.equal(second.swapped)


def test_drawing_leaves_the_global_generators_alone():
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    TokenMix.draw(BATCH, GRID, seeded(), pairwise=True)
    assert torch.get_rng_state().equal(before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])


def test_one_box_serves_the_batch_and_the_partner_is_the_batch_reversed():
    mix = TokenMix.draw(BATCH, GRID, seeded())
    assert mix.swapped.shape == (1, *GRID)
    assert mix.partner.tolist() == [3, 2, 1, 0]
    assert mix.weight.shape == (BATCH,)


def test_pairwise_partners_are_in_random_order():
    orders = {tuple(TokenMix.draw(3, GRID, seeded(seed), pairwise=True).partner.tolist()) for seed in range(100)}
    assert len(orders) == 6


@PAIRWISE
def test_a_single_image_is_its_own_partner(pairwise):
    mix = partial_mix(pairwise, batch=1)
    tokens, targets, image_targets = normal(1, TOKENS, 6), probabilities(1, TOKENS, 7), probabilities(1, 7)
    assert mix.swap(tokens).equal(tokens)
    assert mix.unswap(tokens).equal(tokens)
    assert mix.swap_targets(targets).equal(targets)
    torch.testing.assert_close(mix.blend(image_targets), image_targets, rtol=0, atol=1e-15)


def test_a_mix_moves_to_a_device():
    mix = TokenMix.draw(BATCH, GRID, seeded()).to("meta")
    assert mix.swap(torch.empty(BATCH, *GRID, 2, device="meta")).shape == (BATCH, *GRID, 2)
    assert mix.blend(torch.empty(BATCH, 7, device="meta")).shape == (BATCH, 7)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"batch": 0}, "batch must be at least 1; got batch=0"),
        ({"grid": (0, 14)}, "grid must have at least one row and one column; got grid=(0, 14)"),
        ({"alpha": 0.0}, "alpha must be a finite number above 0; got alpha=0.0"),
        ({"alpha": -1.0}, "alpha must be a finite number above 0; got alpha=-1.0"),
        ({"alpha": float("nan")}, "alpha must be a finite number above 0; got alpha=nan"),
        ({"alpha": float("inf")}, "alpha must be a finite number above 0; got alpha=inf"),
    ],
)
def test_a_mix_that_cannot_be_drawn_is_refused(arguments, sentence):
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        TokenMix.draw(**({"batch": 2, "grid": GRID, "generator": seeded()} | arguments))


@pytest.mark.parametrize(
    ("method", "shape", "sentence"),
    [
        ("swap", (4, 5, 3, 2), "tokens must start with 4 x 3 x 5 for this mix; got 4 x 5 x 3 x 2"),
        ("swap", (4, 16, 2), "tokens must start with 4 x 15 for this mix; got 4 x 16 x 2"),
        ("swap_targets", (3, 15), "token targets must start with 4 x 15 for this mix; got 3 x 15"),
        ("unswap", (4, 14, 7), "token logits must start with 4 x 15 for this mix; got 4 x 14 x 7"),
        ("blend", (5, 7), "image targets must start with 4 for this mix; got 5 x 7"),
    ],
)
def test_shapes_that_do_not_fit_the_mix_are_refused(method, shape, sentence):
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        getattr(TokenMix.draw(BATCH, GRID, seeded()), method)(torch.zeros(shape))


@pytest.mark.parametrize(
    ("targets", "got"),
    [
        (torch.arange(4), "4 of torch.int64"),
        (torch.arange(4.0), "4 of torch.float32"),
        (torch.eye(4).long(), "4 x 4 of torch.int64"),
    ],
)
def test_class_ids_are_not_blended(targets, got):
    sentence = (
        "image targets are blended, so they must be floating point with a value for each class or pixel; got " + got
    )
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        TokenMix.draw(BATCH, GRID, seeded()).blend(targets)


def test_a_mask_for_each_image_cannot_be_undone():
    sentence = (
        "a mix with a mask for each of 4 images cannot be undone, because it may show a token twice or never; "
        "swap the targets, or draw with pairwise=False"
    )
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        TokenMix.draw(BATCH, GRID, seeded(), pairwise=True).unswap(torch.zeros(BATCH, TOKENS, 7))
