"""The order of an epoch is a permutation that stays the same, and processes share it out without loss."""

import hashlib
from collections import Counter
from itertools import chain, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.data.distributed_sampler import RepeatAugSampler

from alltokens.data.order import NEIGHBOURS, Share, epoch_order, sample_seed
from alltokens.errors import UserError


@given(st.integers(1, 300), st.integers(0, 2**64), st.integers(0, 1000))
def test_an_epoch_has_each_image_once(images: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_order(images, seed, epoch).tolist()) == list(range(images))


REPEATED = st.integers(1, 4).flatmap(lambda repeats: st.tuples(st.just(repeats), st.integers(2 * repeats, 300)))


@settings(deadline=None)
@given(REPEATED, st.integers(0, 2**64), st.integers(0, 1000), st.integers(1, 4))
def test_with_repeats_an_epoch_has_the_images_that_timm_draws_as_often_as_timm(
    sizes: tuple[int, int], seed: int, epoch: int, processes: int
) -> None:
    repeats, images = sizes
    # timm leaves out what is no multiple of 256 or of its processes; ours does so later, with the last batch.
    images = -(-images // processes) * processes
    data = epoch_order(images, seed, epoch).tolist()
    drawn: list[int] = []
    for rank in range(processes):
        sampler = RepeatAugSampler(
            data,
            processes,
            rank,
            shuffle=False,
            num_repeats=repeats,
            selected_round=0,  # type: ignore[arg-type]
        )
        drawn += [data[place] for place in sampler]
    assert Counter(epoch_order(images, seed, epoch, repeats).tolist()) == Counter(drawn)


@settings(deadline=None)
@given(REPEATED, st.integers(0, 2**64), st.integers(0, 1000))
def test_an_image_is_never_next_to_itself_and_its_repeats_are_near(
    sizes: tuple[int, int], seed: int, epoch: int
) -> None:
    repeats, images = sizes
    order = epoch_order(images, seed, epoch, repeats).tolist()
    assert all(one != other for one, other in pairwise(order))
    for image in set(order):
        places = [place for place, other in enumerate(order) if other == image]
        # Two groups at most: the last takes what is left.
        assert places[-1] - places[0] < 2 * NEIGHBOURS * repeats


def test_the_order_with_repeats_never_changes() -> None:
    assert epoch_order(10, 0, 0, 3).tolist() == [5, 1, 2, 6, 5, 1, 2, 5, 1, 2]


def test_repeats_of_an_image_have_partners_of_their_own() -> None:
    order = epoch_order(300, 0, 0, 3)
    pairs = order.view(-1, 2).tolist()
    partners = [{a + b - image for a, b in pairs if image in (a, b)} for image in set(order.tolist())]
    assert min(map(len, partners)) == 2


def test_repeats_without_end_are_refused() -> None:
    for images, repeats, sentence in (
        (9, 0, "repeats must be at least 1; got repeats=0"),
        (5, 3, "5 images can come 2 times at most, so that there are two; got repeats=3"),
    ):
        with pytest.raises(UserError) as error:
            epoch_order(images, 0, 0, repeats)
        assert str(error.value) == sentence


def test_the_order_is_that_of_the_hashes() -> None:
    stream = hashlib.shake_128(b"3 4").digest(8 * 50)
    hashes = [int.from_bytes(stream[8 * image : 8 * image + 8], "little") for image in range(50)]
    assert epoch_order(50, 3, 4).tolist() == sorted(range(50), key=hashes.__getitem__)


def test_orders_and_seeds_never_change() -> None:
    assert epoch_order(10, 0, 0).tolist() == [5, 1, 2, 6, 4, 8, 9, 7, 3, 0]
    assert sample_seed(0, 0, 0) == 5_842_066_033_578_894_005


def test_another_seed_or_epoch_is_another_order() -> None:
    orders = {tuple(epoch_order(50, seed, epoch).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_every_image_comes_to_every_place() -> None:
    places = torch.stack([epoch_order(4, 0, epoch) for epoch in range(2000)])
    counts = torch.stack([(places == image).sum(0) for image in range(4)])
    # 500 are expected; the standard deviation is 19.4.
    assert (counts - 500).abs().max() < 100


def test_seeds_of_samples_differ_by_each_of_their_three_numbers() -> None:
    seeds = {sample_seed(a, b, c) for a in (0, 1, 11) for b in (0, 1, 11) for c in (0, 1, 11)}
    assert len(seeds) == 27
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) >= 2**60


@given(st.data(), st.integers(1, 4), st.integers(1, 6), st.booleans(), st.integers(1, 200))
def test_each_image_is_taken_once_by_any_number_of_processes_and_resumes(
    data: st.DataObject, processes: int, pairs: int, drop_last: bool, images: int
) -> None:
    batch = 2 * pairs * processes
    if drop_last and images < batch:
        images += batch
    shares = [
        Share(batch=batch, rank=rank, processes=processes, drop_last=drop_last).places(images)
        for rank in range(processes)
    ]
    count = Share(batch=batch, processes=processes, drop_last=drop_last).batches(images)
    assert {len(share) for share in shares} == {count}
    # The run is stopped anywhere, and goes on from there with any other number of processes that divides the batch.
    stop = data.draw(st.integers(0, count), label="stop")
    others = data.draw(st.sampled_from([n for n in range(1, batch) if batch % (2 * n) == 0]), label="others")
    resumed = [
        Share(batch=batch, rank=rank, processes=others, drop_last=drop_last).places(images, stop)
        for rank in range(others)
    ]
    steps = [[share[step] for share in shares] for step in range(stop)]
    steps += [[share[step] for share in resumed] for step in range(count - stop)]
    taken = [list(chain.from_iterable(step)) for step in steps]
    last = images // batch * batch if drop_last else images
    assert taken == [list(range(start, min(start + batch, last))) for start in range(0, last, batch)]
    if drop_last:
        assert all(len(part) % 2 == 0 and part.start % 2 == 0 and len(part) > 0 for step in steps for part in step)


def test_what_is_left_for_evaluation_may_be_unequal_and_empty() -> None:
    shares = [Share(batch=6, rank=rank, processes=3, drop_last=False).places(9) for rank in range(3)]
    assert shares == [[range(0, 2), range(6, 8)], [range(2, 4), range(8, 9)], [range(4, 6), range(9, 9)]]


def test_a_batch_that_cannot_be_shared_in_pairs_is_refused() -> None:
    for batch in (-4, 0, 1, 2, 6):
        with pytest.raises(UserError) as error:
            Share(batch=batch, processes=2)
        sentence = f"batch must be a multiple of 4, two images for each of 2 processes; got batch={batch}"
        assert str(error.value) == sentence
    assert Share(batch=3, processes=3, drop_last=False).batches(4) == 2
    with pytest.raises(UserError) as error:
        Share(batch=4, processes=3, drop_last=False)
    assert str(error.value) == "batch must be a multiple of 3, one image for each of 3 processes; got batch=4"


def test_fewer_images_than_a_batch_are_refused_in_training() -> None:
    with pytest.raises(UserError) as error:
        Share(batch=1024).places(1023)
    assert str(error.value) == "there are 1,023 images, fewer than a batch of 1,024; make the batch smaller"
    assert Share(batch=1024, drop_last=False).places(1023) == [range(1023)]
