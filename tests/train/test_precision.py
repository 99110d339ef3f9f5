"""fp16: gradients are scaled, and one that overflows costs its step alone."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from alltokens.train.journal import read_reports
from alltokens.train.precision import Precision
from alltokens.train.stopping import Stopped
from alltokens.train.trainer import train

from .test_trainer import assert_same
from .toy_runs import MACHINE, silent, stop_at, toy_config, toy_data

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("data"), images=24)


@pytest.mark.parametrize(
    ("kind", "computed", "stored"),
    [
        ("float64", torch.float64, torch.float64),
        ("float32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.float32),
        ("fp16", torch.float16, torch.float32),
    ],
)
def test_a_model_computes_in_its_precision(kind, computed: torch.dtype, stored: torch.dtype):
    precision = Precision(kind, CPU)
    layer = nn.Linear(2, 2).to(dtype=precision.weights)
    with precision.autocast():
        assert layer(torch.ones(1, 2, dtype=stored)).dtype == computed
    assert layer.weight.dtype == stored


def test_fp16_trains_as_float32_does_and_goes_on_after_a_stop(data: Path, tmp_path: Path):
    config = toy_config(data)
    train(config, tmp_path / "float32", MACHINE, silent)
    config = replace(config, precision="fp16")
    train(config, tmp_path / "fp16", MACHINE, silent)
    for ours, exact in zip(
        *(read_reports(tmp_path / run / "metrics.jsonl") for run in ("fp16", "float32")), strict=True
    ):
        assert ours["train_loss"] == pytest.approx(exact["train_loss"], rel=0.01)
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", MACHINE, stop_at(4))
    train(config, tmp_path / "run", MACHINE, silent)
    assert_same(tmp_path / "fp16", tmp_path / "run")


def step(precision: Precision, layer: nn.Module, optimizer: torch.optim.Optimizer, gradient: float) -> None:
    precision.scaler.scale(layer(torch.ones(1, 1)).sum() * gradient).backward()
    precision.scaler.unscale_(optimizer)
    precision.scaler.step(optimizer)
    precision.scaler.update()
    optimizer.zero_grad()


def test_a_step_whose_gradients_overflow_is_left_out_and_the_scale_halved():
    precision, layer = Precision("fp16", CPU), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = layer.weight.item()
    step(precision, layer, optimizer, math.inf)
    assert layer.weight.item() == before
    assert precision.counters()["scaler scale"] == 2**15
    step(precision, layer, optimizer, 1.0)
    assert layer.weight.item() == pytest.approx(before - 0.1)


def test_the_scale_is_kept():
    first, second = Precision("fp16", CPU), Precision("fp16", CPU)
    layer = nn.Linear(1, 1)
    step(first, layer, torch.optim.SGD(layer.parameters(), lr=0.1), math.inf)
    step(first, layer, torch.optim.SGD(layer.parameters(), lr=0.1), 1.0)
    second.restore({"step": 2, **first.counters()})
    assert second.counters() == first.counters() != Precision("fp16", CPU).counters()
    assert Precision("bf16", CPU).counters() == {}


def test_an_overflow_is_no_divergence_unless_the_scale_is_small_already():
    precision = Precision("fp16", CPU)
    assert precision.judged(torch.tensor(3.0)) == 3
    assert precision.judged(torch.tensor(math.inf)) == 0
    assert precision.judged(torch.tensor(math.nan)) == 0
    precision.restore({**precision.counters(), "scaler scale": 0.5})
    assert precision.judged(torch.tensor(3.0)) == 3
    assert precision.judged(torch.tensor(math.inf)) == math.inf
    assert Precision("bf16", CPU).judged(torch.tensor(math.inf)) == math.inf
