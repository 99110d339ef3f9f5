"""A clock that a test turns."""


class Clock:
    """Stands still until it is turned; takes the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1.0

    def monotonic(self) -> float:
        return self.now
