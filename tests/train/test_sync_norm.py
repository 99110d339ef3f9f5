"""Batch norms of two processes with a part of a batch each, against one process with all of it."""

import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from alltokens.errors import UserError
from alltokens.train.sync_norm import SynchronizedNorm, synchronize_norms

from .two_processes import batch, network, two_steps


@pytest.fixture(scope="module", params=[4, 3])
def both(request, tmp_path_factory) -> list[dict[str, Tensor]]:
    """What the two processes found, at equal and at unequal parts."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "tests.train.two_processes", folder, str(request.param)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    low = torch.cat([torch.load(folder / f"low {rank}.pt") for rank in (0, 1)])
    return [{**torch.load(folder / f"{rank}.pt"), "low": low} for rank in (0, 1)]


@pytest.fixture(scope="module")
def whole() -> dict[str, Tensor]:
    return two_steps(network(), *batch())


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_outputs_are_those_of_the_whole_batch(both, whole):
    close(torch.cat([found["output"] for found in both]), whole["output"])


def test_gradients_of_the_images_are_those_of_the_whole_batch(both, whole):
    close(torch.cat([found["images"] for found in both]), whole["images"])


def test_gradients_of_the_weights_add_up_to_those_of_the_whole_batch(both, whole):
    names = [name for name in whole if name.startswith("gradient ")]
    assert len(names) == 12
    for name in names:
        close(both[0][name] + both[1][name], whole[name])


def test_running_statistics_are_those_of_the_whole_batch_in_both_processes(both, whole):
    names = [name for name in whole if name.startswith("state ")]
    assert sum("running" in name for name in names) == 6
    for found in both:
        assert [name for name in found if name.startswith("state ")] == names
        for name in names:
            close(found[name], whole[name])


def test_images_in_bfloat16_are_normalised_in_float32(both):
    images = batch()[0].bfloat16()
    wanted = nn.BatchNorm2d(3)(images.float()).detach()
    assert both[0]["low"].dtype == torch.bfloat16
    torch.testing.assert_close(both[0]["low"].float(), wanted, rtol=2**-8, atol=1e-6)


def test_names_values_and_flags_stay_and_a_second_call_changes_nothing():
    model = network()
    model[1].weight.requires_grad_(False)
    before, parameters = deepcopy(model.state_dict()), list(model.parameters())
    for _ in range(2):
        synchronize_norms(model)
        assert isinstance(model[1], SynchronizedNorm)
        assert list(model.state_dict()) == list(before)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(mine is own for mine, own in zip(model.parameters(), parameters, strict=True))


@pytest.mark.parametrize("training", [True, False])
def test_one_process_alone_answers_as_before(training):
    model = network()
    images, _ = batch()
    model(images)
    changed = deepcopy(model)
    synchronize_norms(changed)
    assert torch.equal(changed.train(training)(images), model.train(training)(images))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in changed.state_dict().items())


def test_a_norm_of_another_kind_is_refused():
    with pytest.raises(UserError) as raised:
        synchronize_norms(nn.Sequential(nn.Identity(), nn.BatchNorm3d(2)))
    assert str(raised.value) == (
        "'1' is a BatchNorm3d, which cannot be synchronised over processes; train this model in one process"
    )
