"""How far long work has come: a bar on a terminal, a plain line now and then otherwise."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

Report = Callable[[int, int], None]
"""Told how much is done, and of how much."""

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(work: str, unit: str, quiet: bool = False) -> Iterator[Report]:
    """Show what the report is told, as `work: 512 of 1,000 images, 203 images/s, 3 s left`; nothing where `quiet`."""
    console = Console(stderr=True)
    started = time.monotonic()
    if quiet:
        yield lambda done, total: None
    elif console.is_terminal:
        text = TextColumn("{task.fields[text]}")
        with Progress(TextColumn("{task.description}"), BarColumn(), text, console=console) as bar:
            task = bar.add_task(work, total=None, text="")
            yield lambda done, total: bar.update(
                task, completed=done, total=total, text=sentence(done, total, unit, time.monotonic() - started)
            )
    else:
        yield Lines(work, unit, console, started).report


class Lines:
    """Prints no more often than is useful in a log."""

    def __init__(self, work: str, unit: str, console: Console, started: float) -> None:
        self.work, self.unit, self.console = work, unit, console
        self.started, self.printed = started, started

    def report(self, done: int, total: int) -> None:
        """Print if it is time to, or the work is over."""
        now = time.monotonic()
        if done and (done == total or now - self.printed >= SECONDS_BETWEEN_LINES):
            self.printed = now
            text = f"{self.work}: {sentence(done, total, self.unit, now - self.started)}"
            self.console.print(text, highlight=False, soft_wrap=True)


def sentence(done: int, total: int, unit: str, seconds: float) -> str:
    """`512 of 1,000 images, 203 images/s, 3 s left`."""
    parts = [f"{done:,} of {total:,} {unit}"]
    if done and seconds > 0:
        rate = done / seconds
        parts.append(f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.1f} {unit}/s")
        parts.append(f"{duration((total - done) / rate)} left" if done < total else f"in {duration(seconds)}")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s` or `7 s`, rounded up."""
    whole = ceil(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
