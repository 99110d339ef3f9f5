"""A page that is kept up with its run, at little cost to it."""

import time
from collections.abc import Callable
from math import inf
from pathlib import Path

from alltokens.report.page import write_page

SECONDS_BETWEEN = 10.0
"""At the least from one page to the next, so that short epochs are not spent on pages."""


class Refreshed:
    """A page on the disk, not written again for every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: Callable[[], str] | None = None
        """Makes the newest page, where that is not on the disk yet."""
        self.written = -inf

    def offer(self, make: Callable[[], str], at_once: bool = False) -> None:
        """There is something new to show: now, or if the last page is too recent, later."""
        self.waiting = make
        if at_once or time.monotonic() - self.written >= SECONDS_BETWEEN:
            self.write()

    def write(self) -> None:
        """The newest page, if it is not there already."""
        if self.waiting is not None:
            write_page(self.path, self.waiting())
            self.waiting, self.written = None, time.monotonic()
