"""What long work says of itself."""

import os
import subprocess
import sys

import pytest

from alltokens.progress import duration, progress, sentence


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59.5, "1 min 00 s"), (200.0, "3 min 20 s"), (3599.5, "1 h 00 min"), (7500.0, "2 h 05 min")],
)
def test_durations_are_rounded_up(seconds: float, words: str):
    assert duration(seconds) == words


def test_a_sentence_has_the_rate_and_the_time_left():
    assert sentence(512, 1000, "images", 2.5) == "512 of 1,000 images, 205 images/s, 3 s left"
    assert sentence(3, 1000, "images", 2.0) == "3 of 1,000 images, 1.5 images/s, 11 min 05 s left"


def test_what_an_earlier_run_did_has_no_part_in_the_rate():
    assert sentence(512, 1000, "images", 2.0, earlier=500) == "512 of 1,000 images, 6.0 images/s, 1 min 22 s left"
    assert sentence(500, 1000, "images", 2.0, earlier=500) == "500 of 1,000 images"


def test_finished_work_says_how_long_it_took():
    assert sentence(1000, 1000, "images", 65.0) == "1,000 of 1,000 images, 15 images/s, in 1 min 05 s"


def test_nothing_done_has_no_rate():
    assert sentence(0, 10, "images", 1.0) == "0 of 10 images"


def test_without_a_terminal_there_is_a_line_at_the_end(capfd: pytest.CaptureFixture[str]):
    with progress("annotating", "images") as report:
        report(0, 2)
        report(1, 2)
        report(2, 2)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("annotating: 2 of 2 images, ")


def test_a_note_stands_at_the_end(capfd: pytest.CaptureFixture[str]):
    with progress("training", "images") as report:
        report(0, 2)
        report(2, 2, "loss 2.31")
    assert capfd.readouterr().err.endswith(" in 1 s, loss 2.31\n")


def test_quiet_work_says_nothing(capfd: pytest.CaptureFixture[str]):
    with progress("annotating", "images", quiet=True) as report:
        report(2, 2, "loss 2.31")
    assert capfd.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with progress("annotating", "images") as report:
        report(1, 2)
        report(2, 2, "loss 2.31")
    assert "2 of 2 images" in capfd.readouterr().err


PROGRAM = """
from alltokens.progress import progress
with progress("work", "images") as report:
    for _ in range(3):
        report(2, 2)
print("done")
"""


@pytest.mark.parametrize("target", ["a full disk", "a pipe that nobody reads"])
def test_work_goes_on_where_nobody_can_be_told(target: str):
    if target == "a full disk":
        listener = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, listener = os.pipe()
        os.close(reader)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=listener, text=True, check=False)
    os.close(listener)
    assert done.stdout == "done\n"
