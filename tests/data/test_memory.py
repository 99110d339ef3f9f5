"""Pixels of one batch after the other in the same memory."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from alltokens.data.memory import Memory

from ..sources.pictures import noise


def image(height: int, width: int, seed: int) -> Tensor:
    return torch.from_numpy(noise(height, width, seed=seed)).permute(2, 0, 1)


def filled(memory: Memory, images: Sequence[Tensor]) -> Tensor:
    memory.used = 0
    for one in images:
        memory.add(one)
    return memory.taken()


@pytest.mark.parametrize("shared", [False, True])
def test_images_lie_one_after_the_other_however_much_room_there_was(shared: bool) -> None:
    memory = Memory(shared)
    images = [image(3 + seed, 20 - 2 * seed, seed) for seed in range(8)]
    expected = torch.cat([one.permute(1, 2, 0).reshape(-1, 3) for one in images])
    assert torch.equal(filled(memory, images), expected)
    assert memory.bytes.is_shared() == shared


def test_a_smaller_batch_takes_no_new_memory() -> None:
    memory = Memory(shared=True)
    filled(memory, [image(9, 9, seed) for seed in range(4)])
    place = memory.bytes.data_ptr()
    images = [image(5, 6, 7), image(2, 3, 8)]
    assert torch.equal(filled(memory, images), torch.cat([one.permute(1, 2, 0).reshape(-1, 3) for one in images]))
    assert memory.bytes.data_ptr() == place


def test_a_batch_may_be_empty() -> None:
    assert Memory().taken().shape == (0, 3)
