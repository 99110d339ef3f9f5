"""When a page is written, by a clock that the test turns."""

from pathlib import Path

import pytest

from alltokens.report import refresh
from alltokens.report.refresh import SECONDS_BETWEEN, Refreshed

from ..clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(refresh, "time", stopped)
    return stopped


@pytest.fixture
def page(tmp_path: Path) -> Refreshed:
    return Refreshed(tmp_path / "report.html")


def test_the_first_page_is_written_at_once_and_the_next_when_it_is_time(clock: Clock, page: Refreshed):
    page.offer(lambda: "first")
    assert page.path.read_text() == "first"
    page.offer(lambda: "second")
    assert page.path.read_text() == "first"
    clock.now += SECONDS_BETWEEN
    page.offer(lambda: "third")
    assert page.path.read_text() == "third"


def test_what_waits_is_made_only_when_it_is_written(clock: Clock, page: Refreshed):
    page.offer(lambda: "first")
    page.offer(lambda: pytest.fail("made for nothing"))
    page.offer(lambda: "third")
    page.write()
    assert page.path.read_text() == "third"


def test_the_last_page_does_not_wait(clock: Clock, page: Refreshed):
    page.offer(lambda: "first")
    page.offer(lambda: "last", at_once=True)
    assert page.path.read_text() == "last"


def test_nothing_new_is_not_written_again(page: Refreshed):
    page.write()
    assert not page.path.exists()
    page.offer(lambda: "first")
    page.path.unlink()
    page.write()
    assert not page.path.exists()
