"""The learning rate of every step, against timm's schedulers."""

from dataclasses import replace

import pytest
import torch
from timm.scheduler import CosineLRScheduler, PolyLRScheduler

from alltokens.errors import UserError
from alltokens.train.schedule import ScheduleConfig, learning_rate

STEPS = 7
SHORT = ScheduleConfig(epochs=10, warmup_epochs=2.0, cooldown_epochs=3)


def rates(config: ScheduleConfig, peak: float) -> list[float]:
    return [learning_rate(config, peak, step, STEPS) for step in range(config.total_epochs * STEPS)]


@pytest.mark.parametrize("kind", ["cosine", "linear"])
@pytest.mark.parametrize("warmup_epochs", [0.0, 2.0, 2.5])
@pytest.mark.parametrize(("warmup_rate", "final_rate"), [(1e-6, 1e-5), (0.0, 0.0), (1e-3, 2e-4)])
def test_every_step_has_timms_rate(kind, warmup_epochs, warmup_rate, final_rate):
    config = replace(SHORT, kind=kind, warmup_epochs=warmup_epochs, warmup_rate=warmup_rate, final_rate=final_rate)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=3e-3)
    settings = {
        "t_initial": config.epochs * STEPS,
        "lr_min": final_rate,
        "warmup_t": round(warmup_epochs * STEPS),
        "warmup_lr_init": warmup_rate,
        "t_in_epochs": False,
    }
    linear = kind == "linear"
    timms = PolyLRScheduler(optimizer, power=1.0, **settings) if linear else CosineLRScheduler(optimizer, **settings)
    expected = []
    for step in range(config.total_epochs * STEPS):
        timms.step_update(step)
        expected.append(optimizer.param_groups[0]["lr"])
    assert rates(config, 3e-3) == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_the_last_steps_are_a_cooldown_at_the_final_rate():
    found = rates(SHORT, 1e-3)
    assert found[70:] == [1e-5] * 21
    assert found[69] > 1e-5


def test_the_first_step_has_the_warmup_rate():
    assert rates(SHORT, 1e-3)[0] == 1e-6


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1; got epochs=0"),
        (
            {"epochs": 5, "warmup_epochs": 5.0},
            "warmup_epochs must be at least 0 and below epochs=5; got warmup_epochs=5.0",
        ),
        ({"warmup_epochs": -1.0}, "warmup_epochs must be at least 0 and below epochs=300; got warmup_epochs=-1.0"),
        ({"cooldown_epochs": -1}, "cooldown_epochs must be at least 0; got cooldown_epochs=-1"),
        ({"warmup_rate": -1e-6}, "warmup_rate must be at least 0; got warmup_rate=-1e-06"),
        ({"final_rate": float("nan")}, "final_rate must be at least 0; got final_rate=nan"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(fields, sentence):
    with pytest.raises(UserError) as raised:
        ScheduleConfig(**fields)
    assert str(raised.value) == sentence


@pytest.mark.parametrize("name", ["warmup_rate", "final_rate"])
def test_a_rate_that_would_rise_at_the_end_or_fall_at_the_start_is_refused(name):
    config = replace(SHORT, **{"warmup_rate": 0.0, "final_rate": 0.0, name: 1e-5})
    with pytest.raises(UserError) as raised:
        learning_rate(config, 6.25e-6, 0, STEPS)
    assert str(raised.value) == (
        f"{name} must not be above the learning rate of this batch size, 6.25e-06; got {name}=1e-05"
    )
