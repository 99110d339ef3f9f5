"""Batches in one piece of memory, and out of it again."""

import select
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch

from alltokens.data.batch import Batch
from alltokens.data.loader import train_batches
from alltokens.data.memory import Memory
from alltokens.data.order import Share
from alltokens.data.parcel import Parcel
from alltokens.data.samples import AugmentedBy

from .pictures import same_batches, samples_of, source_of


def storages_of(batch: Batch) -> set[int]:
    """Where the memory of its tensors begins, those left out that have none."""
    found = set()
    batch.with_each(lambda part: found.add(part.untyped_storage().data_ptr()) or part)
    return found - {0}


@pytest.mark.parametrize("with_labels", [False, True])
@pytest.mark.parametrize("where", ["workers", "device"])
@pytest.mark.parametrize("room", [0, 10**6])
def test_a_batch_comes_out_as_it_went_in(tmp_path: Path, where: AugmentedBy, with_labels: bool, room: int) -> None:
    samples = samples_of(source_of(9), tmp_path / "store" if with_labels else None).left_to(where)
    memory = Memory(shared=True)
    if room:
        memory.grow(room)
    order = torch.arange(9)
    parcel = Parcel.of(samples.batch(2, order, range(3, 8), memory), memory)
    alone = samples.batch(2, order, range(3, 8))
    for opened in (parcel.opened(), parcel.copy().opened()):
        assert len(storages_of(opened)) == 1
        assert same_batches([opened.augmented()], [alone.augmented()])
        assert opened.images.is_contiguous(memory_format=torch.channels_last) or opened.boxes is not None


def test_a_copy_is_not_changed_with_the_memory() -> None:
    samples, memory, order = samples_of(source_of(9)), Memory(shared=True), torch.arange(9)
    copied = Parcel.of(samples.batch(0, order, range(4), memory), memory).copy().opened()
    memory.bytes.fill_(7)
    assert same_batches([copied], [samples.batch(0, order, range(4))])


def test_workers_hand_over_one_piece_of_memory(tmp_path: Path) -> None:
    batches = train_batches(samples_of(source_of(9), tmp_path / "store"), Share(batch=4), range(1), workers=1)
    assert [len(storages_of(batch)) for batch in batches] == [1, 1]


def test_what_goes_through_the_pipe_is_written_at_once_or_not_at_all() -> None:
    samples, memory, many = samples_of(source_of(9)).left_to("device"), Memory(shared=True), 256
    parcel = Parcel.of(samples.batch(0, torch.zeros(many, dtype=torch.int64), range(many), memory), memory)
    assert len(ForkingPickler.dumps(parcel)) < select.PIPE_BUF


def test_numbers_begin_where_they_may() -> None:
    memory = Memory()
    memory.add(torch.zeros(3, 1, 1, dtype=torch.uint8))
    assert [memory.append(torch.ones(2, dtype=torch.float64)), memory.append(torch.ones(1))] == [16, 32]
