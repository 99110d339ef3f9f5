"""How far long work has come: a bar on a terminal, a plain line now and then otherwise."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

SECONDS_BETWEEN_LINES = 10.0


@runtime_checkable
class Report(Protocol):
    """Told how much is done and of how much, and perhaps what else there is to say, such as `loss 2.31`."""

    def __call__(self, done: int, total: int, note: str = "", /) -> None: ...


@contextmanager
def progress(work: str, unit: str, quiet: bool = False) -> Iterator[Report]:
    """Show what the report is told, as `work: 512 of 1,000 images, 203 images/s, 3 s left`; nothing where `quiet`."""
    console = Listener(stderr=True)
    if quiet:
        yield lambda done, total, note="": None
    elif console.is_terminal:
        pace = Pace(unit)
        text = TextColumn("{task.fields[text]}")
        with Progress(TextColumn("{task.description}"), BarColumn(), text, console=console) as bar:
            task = bar.add_task(work, total=None, text="")
            yield lambda done, total, note="": bar.update(
                task, completed=done, total=total, text=pace.sentence(done, total, note)
            )
    else:
        yield Lines(work, unit, console).report


class Listener(Console):
    """Who may go away, as the other end of a pipe does: the work goes on, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Pace:
    """When the work began, and with how much of it done: what an earlier run did took this one no time."""

    def __init__(self, unit: str) -> None:
        self.unit, self.started = unit, time.monotonic()
        self.earlier: int | None = None

    def sentence(self, done: int, total: int, note: str) -> str:
        """Work that is first heard of when it is over was done now."""
        if self.earlier is None:
            self.earlier = done if done < total else 0
        text = sentence(done, total, self.unit, time.monotonic() - self.started, self.earlier)
        return f"{text}, {note}" if note else text


class Lines:
    """Prints no more often than is useful in a log."""

    def __init__(self, work: str, unit: str, console: Console) -> None:
        self.work, self.console, self.pace = work, console, Pace(unit)
        self.printed = self.pace.started

    def report(self, done: int, total: int, note: str = "", /) -> None:
        """Print if it is time to, or the work is over."""
        text = self.pace.sentence(done, total, note)
        now = time.monotonic()
        if done and (done == total or now - self.printed >= SECONDS_BETWEEN_LINES):
            self.printed = now
            with suppress(OSError):  # a full disk under a log ends no work
                self.console.print(f"{self.work}: {text}", highlight=False, soft_wrap=True)


def sentence(done: int, total: int, unit: str, seconds: float, earlier: int = 0) -> str:
    """`512 of 1,000 images, 203 images/s, 3 s left`; `earlier` ones took none of the seconds."""
    parts = [f"{done:,} of {total:,} {unit}"]
    if done > earlier and seconds > 0:
        rate = (done - earlier) / seconds
        parts.append(f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.1f} {unit}/s")
        parts.append(f"{duration((total - done) / rate)} left" if done < total else f"in {duration(seconds)}")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s` or `7 s`, rounded up."""
    whole = ceil(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
