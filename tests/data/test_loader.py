"""The same batches whatever makes them: workers, processes and resumes; and nothing left behind."""

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from alltokens.data import loader
from alltokens.data.batch import Batch
from alltokens.data.loader import TURNS, evaluation_batches, fetched_ahead, train_batches
from alltokens.data.memory import Memory
from alltokens.data.order import Share, epoch_order
from alltokens.data.samples import AugmentedBy, EvaluationConfig, EvaluationSamples, TrainSamples
from alltokens.errors import UserError

from .pictures import CLASSES, SIZE, fields_of, rows_of, same_batches, samples_of, source_of


@pytest.fixture
def samples(tmp_path: Path) -> TrainSamples:
    """Seventeen images with labels, of which two cannot be read."""
    return samples_of(source_of(17, broken=[6, 12]), tmp_path / "store")


def evaluated(broken: tuple[int, ...] = (2,)) -> EvaluationSamples:
    return EvaluationSamples(source_of(11, broken), CLASSES, EvaluationConfig(), SIZE)


def epoch_of(samples: TrainSamples, share: Share, epoch: int = 0, first: int = 0, workers: int = 0) -> list[Batch]:
    return list(train_batches(samples, share, range(epoch, epoch + 1), first, workers))


def test_an_epoch_is_the_batches_of_its_order(samples: TrainSamples) -> None:
    batches, order = epoch_of(samples, Share(batch=4), epoch=3), epoch_order(17, samples.seed, 3)
    assert same_batches(batches, [samples.batch(3, order, range(start, start + 4)) for start in (0, 4, 8, 12)])


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(samples: TrainSamples, workers: int) -> None:
    alone, helped = epoch_of(samples, Share(batch=4)), epoch_of(samples, Share(batch=4), workers=workers)
    assert len(alone) == 4
    assert same_batches(alone, helped)
    assert sum(len(batch.skipped) for batch in alone) > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_goes_on_where_it_was_left(samples: TrainSamples, workers: int) -> None:
    whole = epoch_of(samples, Share(batch=4), epoch=1)
    for first in (0, 1, 3, 4):
        assert same_batches(epoch_of(samples, Share(batch=4), 1, first, workers), whole[first:])


@pytest.mark.parametrize("processes", [2, 4])
def test_the_shares_of_processes_joined_are_the_batch_of_one(samples: TrainSamples, processes: int) -> None:
    whole = epoch_of(samples, Share(batch=8))
    shares = [epoch_of(samples, Share(batch=8, rank=rank, processes=processes)) for rank in range(processes)]
    for together, *parts in zip(whole, *shares, strict=True):
        assert {len(part) for part in parts} == {8 // processes}
        assert [*chain.from_iterable(map(rows_of, parts))] == rows_of(together)
        assert tuple(chain.from_iterable(part.skipped for part in parts)) == together.skipped


def test_smaller_batches_are_larger_ones_cut(samples: TrainSamples) -> None:
    small, large = epoch_of(samples, Share(batch=4)), epoch_of(samples, Share(batch=8))
    assert [*chain.from_iterable(map(rows_of, small))] == [*chain.from_iterable(map(rows_of, large))]


def test_epochs_and_seeds_differ() -> None:
    source = source_of()
    runs = [epoch_of(samples_of(source, seed=seed), Share(batch=4), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({str([*map(rows_of, run)]) for run in runs}) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_shows_every_readable_image_once_over_processes(workers: int) -> None:
    samples = evaluated()
    shares = [
        list(evaluation_batches(samples, Share(batch=6, rank=rank, processes=3, drop_last=False), workers))
        for rank in range(3)
    ]
    assert [[len(batch) for batch in share] for share in shares] == [[2, 2], [1, 2], [2, 1]]
    keys = [key for step in zip(*shares, strict=True) for batch in step for key in batch.keys]
    assert keys == [key for index, key in enumerate(samples.source.keys) if index != 2]
    assert [batch.skipped for share in shares for batch in share if batch.skipped] == [("class5/02.png",)]
    (alone,) = evaluation_batches(samples, Share(batch=12, drop_last=False))
    assert [row for step in zip(*shares, strict=True) for batch in step for row in rows_of(batch)] == rows_of(alone)


def test_a_process_without_images_has_an_empty_batch() -> None:
    share = Share(batch=8, rank=3, processes=4, drop_last=False)
    first, last = evaluation_batches(evaluated(), share)
    assert (len(first), len(last)) == (2, 0)
    assert last.images.shape == (0, 3, 16, 24)


@pytest.mark.parametrize("workers", [0, 1])
def test_global_random_states_are_untouched(samples: TrainSamples, workers: int) -> None:
    def states() -> list:
        # Not Python's own: the checks of shape annotations draw from it.
        return [np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]

    before = states()
    epoch_of(samples, Share(batch=4), workers=workers)
    assert states() == before


# Workers


def begun(samples: TrainSamples) -> Iterator[Batch]:
    """An epoch after its first batch, its workers at work."""
    batches = train_batches(samples, Share(batch=2), range(1), workers=2)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    return batches


def test_no_worker_outlives_an_epoch(samples: TrainSamples) -> None:
    assert len(list(begun(samples))) == 7
    assert multiprocessing.active_children() == []


def test_no_worker_outlives_a_consumer_that_stops(samples: TrainSamples) -> None:
    for _ in begun(samples):
        break
    assert multiprocessing.active_children() == []


def test_no_worker_outlives_a_consumer_that_fails(samples: TrainSamples) -> None:
    def consume() -> None:
        for _ in begun(samples):
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        consume()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("where", ["workers", "device"])
@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_follow_each_other_as_if_each_were_alone(
    samples: TrainSamples, where: AugmentedBy, workers: int
) -> None:
    left, share = samples.left_to(where), Share(batch=2)
    alone = [*epoch_of(left, share, 3, first=5), *epoch_of(left, share, 4), *epoch_of(left, share, 5)]
    together = list(train_batches(left, share, range(3, 6), 5, workers))
    assert same_batches([batch.augmented() for batch in together], [batch.augmented() for batch in alone])


def test_epochs_follow_each_other_by_the_same_workers(samples: TrainSamples) -> None:
    batches = train_batches(samples, Share(batch=8), range(3), workers=2)
    processes = [{process.pid for process in multiprocessing.active_children()} for _ in batches]
    assert len(processes) == 6
    assert all(found == processes[0] and len(found) == 2 for found in processes[:-1])


def test_batches_that_would_be_no_whole_step_are_left_out_of_every_epoch(samples: TrainSamples) -> None:
    one, other = (epoch_of(samples, Share(batch=4), epoch)[:3] for epoch in (0, 1))
    assert same_batches(list(train_batches(samples, Share(batch=4, parts=3), range(2))), one + other)


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_workers_leave_signals_that_others_send_to_the_run(samples: TrainSamples, name: str) -> None:
    batches = begun(samples)
    for worker in multiprocessing.active_children():
        subprocess.run(["kill", f"-{name}", str(worker.pid)], check=True)
    assert same_batches(list(batches), epoch_of(samples, Share(batch=2), first=1))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mistake_met_by_a_worker_is_one_sentence(workers: int) -> None:
    samples = samples_of(source_of(4, broken=range(4)))
    with pytest.raises(UserError) as error:
        epoch_of(samples, Share(batch=2), workers=workers)
    assert str(error.value).startswith("4 images of 'photos' in a row cannot be read, such as ")
    assert str(error.value).endswith("; see that they are there")
    assert multiprocessing.active_children() == []


def test_fewer_than_no_workers_are_refused_at_once(samples: TrainSamples) -> None:
    for begin in (
        lambda: train_batches(samples, Share(batch=2), range(1), workers=-1),
        lambda: evaluation_batches(evaluated(), Share(batch=2, drop_last=False), workers=-1),
    ):
        with pytest.raises(UserError) as error:
            begin()
        assert str(error.value) == "workers must be at least 0; got workers=-1"


def test_a_batch_larger_than_the_data_is_refused_at_once(samples: TrainSamples) -> None:
    with pytest.raises(UserError, match=r"^there are 17 images, fewer than a batch of 18; make the batch smaller$"):
        train_batches(samples, Share(batch=18), range(1))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_are_left_to_the_device_do_not_depend_on_workers_either(
    samples: TrainSamples, workers: int
) -> None:
    left = samples.left_to("device")
    expected = [left.batch(1, epoch_order(len(samples.source), samples.seed, 1), range(4, 8)).augmented()]
    found = [batch.augmented() for batch in epoch_of(left, Share(batch=4), 1, first=1, workers=workers)]
    assert same_batches(found[:1], expected)


@pytest.mark.parametrize("where", ["workers", "device"])
def test_batches_that_are_kept_are_not_written_to_again(samples: TrainSamples, where: AugmentedBy) -> None:
    left = samples.left_to(where)
    alone, by_a_worker = (epoch_of(left, Share(batch=2), workers=workers) for workers in (0, 1))
    assert len(alone) > 2 * TURNS - 2
    assert same_batches([batch.augmented() for batch in by_a_worker], [batch.augmented() for batch in alone])


# What is fetched ahead


def nothing_is_left() -> bool:
    """Neither workers nor the thread; torch's own threads, which feed workers, may still be ending."""
    threads = [thread.name for thread in threading.enumerate() if "(fetch)" in thread.name]
    return not threads and not multiprocessing.active_children()


@pytest.mark.parametrize("count", [1, 2, 8])
def test_batches_that_are_fetched_ahead_are_the_same(samples: TrainSamples, count: int) -> None:
    share = Share(batch=16 // count)
    found = list(fetched_ahead(train_batches(samples, share, range(1), workers=2)))
    assert len(found) == count
    assert same_batches(found, epoch_of(samples, share))
    assert nothing_is_left()


def test_what_is_fetched_ahead_ends_with_its_consumer(samples: TrainSamples) -> None:
    for place, _ in enumerate(fetched_ahead(train_batches(samples, Share(batch=2), range(10**6), workers=2))):
        if place == 3:
            break
    assert nothing_is_left()


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """A signal handled in another way for a while; pytest-xdist ignores Ctrl-C."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_a_worker_that_is_killed_ends_what_is_fetched_ahead(samples: TrainSamples) -> None:
    def consume() -> None:
        for place, _ in enumerate(fetched_ahead(train_batches(samples, Share(batch=2), range(10**6), workers=2))):
            if place == 1:
                # torch's own handler would raise wherever this thread is then, perhaps a second time.
                meanwhile.enter_context(handled(signal.SIGCHLD, signal.SIG_DFL))
                os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    match = r"^DataLoader worker (\(pid.* \d+\) |was killed, )"
    with ExitStack() as meanwhile, pytest.raises(RuntimeError, match=match):
        consume()
    assert nothing_is_left()


@pytest.mark.parametrize("ending", ["closed", "interrupted"])
def test_a_worker_that_is_stuck_does_not_hold_up_the_end(
    samples: TrainSamples, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    def stuck(place: int, memory: Memory) -> Batch:
        if place > 1:
            time.sleep(60)
        return samples.batch(0, epoch_order(17, 0, 0), range(2), memory)

    monkeypatch.setattr(loader, "PATIENCE", 0.2)
    found = fetched_ahead(loader.batches(stuck, [(place,) for place in range(9)], 1, torch.device("cpu")))
    next(found)
    next(found)
    if ending == "closed":
        found.close()
    else:
        threading.Timer(1.0, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        with handled(signal.SIGINT, signal.default_int_handler), pytest.raises(KeyboardInterrupt):
            next(found)
    # The thread is left to itself, until its worker ends.
    assert not nothing_is_left()
    with handled(signal.SIGCHLD, signal.SIG_DFL):  # torch's own would raise here.
        for worker in multiprocessing.active_children():
            worker.kill()
            worker.join()
    for thread in threading.enumerate():
        if "(fetch)" in thread.name:
            thread.join(60)
    assert nothing_is_left()


def test_a_mistake_that_is_met_ahead_comes_after_what_is_before_it() -> None:
    def some() -> Generator[Batch]:
        yield from good
        raise UserError("no more of them")

    good, found = epoch_of(samples_of(source_of(6)), Share(batch=2)), list[Batch]()
    with pytest.raises(UserError, match=r"^no more of them$"):
        found.extend(fetched_ahead(some()))
    assert same_batches(found, good)


# Batches


def test_a_batch_on_another_device_is_the_same(samples: TrainSamples) -> None:
    batch = epoch_of(samples, Share(batch=4))[0]
    assert fields_of(batch.to("cpu")) == fields_of(batch)
    there = batch.to("meta")
    assert there.score_maps is not None
    tensors = [there.images, there.classes, there.views, there.seeds, there.score_maps.logits, there.score_maps.grids]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert (there.keys, there.skipped) == (batch.keys, batch.skipped)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_for_a_gpu_are_pinned_and_the_same_there(samples: TrainSamples, workers: int) -> None:
    device = torch.device("cuda")
    batches = list(train_batches(samples, Share(batch=4), range(1), workers=workers, device=device))
    for batch in batches:
        assert batch.score_maps is not None
        parts = [batch.images, batch.classes, batch.views, batch.seeds, batch.score_maps.logits, batch.score_maps.grids]
        assert all(part.is_pinned() for part in parts)
        assert batch.to(device).images.device.type == "cuda"
    assert len({batch.images.untyped_storage().nbytes() for batch in batches if workers}) <= 1, "pieces of one size"
    moved = [batch.to(device).to("cpu") for batch in batches]
    assert same_batches(moved, epoch_of(samples, Share(batch=4)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_left_to_a_gpu_is_pinned_and_the_same_there(samples: TrainSamples, workers: int) -> None:
    device, left = torch.device("cuda"), samples.left_to("device")
    batches = list(train_batches(left, Share(batch=2), range(1), workers=workers, device=device))
    assert all(batch.boxes is not None and batch.boxes.pixels.is_pinned() for batch in batches)
    for batch, alone in zip(batches, epoch_of(left, Share(batch=2)), strict=True):
        there = batch.to(device).augmented()
        assert there.images.is_cuda
        assert ((there.images.cpu().int() - alone.augmented().images.int()).abs() <= 2).double().mean() > 0.95
