"""A run that is told to stop finishes its step and saves first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):
    """The run was told to stop, and saved; `status` is what a shell expects of a process that a signal ended."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}, and saved")
        self.status = 128 + number


class StopRequest:
    """Remembers the first signal that asked the run to stop."""

    def __init__(self) -> None:
        self.number = 0

    def take(self, number: int, frame: FrameType | None) -> None:
        """A second Ctrl-C ends the process at once, as it would any other."""
        self.number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Take SIGTERM and Ctrl-C as requests while the run lasts."""
    request = StopRequest()
    before = {number: signal.signal(number, request.take) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
