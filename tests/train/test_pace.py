"""How often a run saves."""

from math import inf

import pytest

from alltokens.train import pace as pace_module
from alltokens.train.pace import Pace

from ..clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace_module, "time", clock)
    return clock


def seconds_until_due(pace: Pace, clock: Clock) -> int:
    began = clock.now
    while not pace.is_due():
        clock.now += 1
    return int(clock.now - began)


def test_a_checkpoint_that_takes_longer_is_due_less_often(clock: Clock) -> None:
    pace = Pace(share=0.1)
    assert seconds_until_due(pace, clock) == 10
    for took in (3, 20, 1):
        with pace.timed():
            clock.now += took
        assert seconds_until_due(pace, clock) == 10 * took


def test_a_run_may_save_after_every_step(clock: Clock) -> None:
    pace = Pace(share=inf)
    assert pace.is_due()
    with pace.timed():
        clock.now += 5
    assert pace.is_due()
