"""When a checkpoint is due: so seldom that it takes little of a run's time, so often that a kill costs little."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

FIRST_GUESS = 1.0
"""Seconds that a checkpoint takes, for all that is known before the first."""


class Pace:
    """Checkpoints that take a share of the time, whatever one takes and however long an epoch is."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.took, self.ended = FIRST_GUESS, time.monotonic()

    def is_due(self) -> bool:
        """Whether the last one, or the beginning, is long enough ago."""
        return time.monotonic() - self.ended >= self.took / self.share

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around the writing of one."""
        began = time.monotonic()
        yield
        self.ended = time.monotonic()
        self.took = self.ended - began
