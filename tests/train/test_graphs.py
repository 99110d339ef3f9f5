"""Steps that a GPU is handed as a whole, against steps that it is handed kernel by kernel."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alltokens.errors import UserError
from alltokens.models.vit import VisionTransformer
from alltokens.processes import Processes
from alltokens.train.machine import Machine
from alltokens.train.training import Training, uses_graphs

from ..objectives.batches import CLASSES, a_batch, rows
from .toy_runs import toy_config

STEPS = 6
"""More than it takes until graphs are replayed: one step for warming up, one for recording, each with two parts."""


def test_graphs_are_of_one_process_that_has_all_weights_of_a_gpu() -> None:
    gpu = Machine(torch.device("cuda"), workers=0, compile=True)
    assert uses_graphs(gpu, Processes(0, 1))
    assert not uses_graphs(gpu, Processes(0, 2))
    assert not uses_graphs(replace(gpu, shard=True), Processes(0, 1))
    assert not uses_graphs(replace(gpu, compile=False), Processes(0, 1))
    assert not uses_graphs(replace(gpu, device=torch.device("cpu")), Processes(0, 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_graphs_take_the_same_steps() -> None:
    check_graphs()


def check_graphs() -> None:
    """Parts of a step that add up, batches that change, and a step that is not finite."""
    config = toy_config(Path("nowhere"), accumulate=2)
    config = replace(config, model=replace(config.model, classes=CLASSES))
    images = a_batch(VisionTransformer(config.model), 24, dtype=torch.float32)
    parts = [[rows(images, slice(8 * part, 8 * part + 8)) for part in pair] for pair in ((0, 1), (1, 2))]
    reports, weights = {}, {}
    for compiled in (False, True):
        training = Training(config, 3, Machine(torch.device("cuda"), 0, compile=compiled), Processes(0, 1))
        steps = [training.take_step(parts[step % 2]) for step in range(STEPS)]
        reports[compiled] = [*steps[1:], training.settle()]
        weights[compiled] = [parameter.detach().clone() for parameter in training.trained]
        training.objective.model.head.bias.data[0] = math.inf
        training.take_step(parts[0])
        with pytest.raises(UserError, match=f"^training diverged in step {STEPS}: loss is (nan|inf)"):
            training.take_step(parts[1])
    for one, other in zip(reports[False], reports[True], strict=True):
        assert one.keys() == other.keys()
        assert all(math.isclose(one[name], other[name], rel_tol=1e-3) for name in one), (one, other)
    for one, other in zip(weights[False], weights[True], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


if __name__ == "__main__":
    check_graphs()
