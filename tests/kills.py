"""Work that is killed at random moments and begun again, in forks of a process in which no thread of torch runs yet."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

KILLS = 20

Work = Callable[[Path], object]
"""Fills a folder, or goes on with it."""


def run_in_fork(work: Work, folder: Path, seconds: float | None = None) -> int:
    """How the work ended in a child that is killed after so many seconds."""
    child = os.fork()
    if child == 0:
        try:
            work(folder)
        except BaseException:
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_again_and_again(work: Work, folder: Path, is_finished: Callable[[Path], bool]) -> None:
    """Leave the folder `whole` of work that nothing disturbed, and folders `done N` of work that was killed.

    Twenty runs are killed. Work that is finished all the same is put aside, and the next begins in an empty place.
    """
    start = time.perf_counter()
    assert run_in_fork(work, folder.with_name("whole")) == 0
    whole = time.perf_counter() - start
    source, killed, done = random.Random(0), 0, 0
    while killed < KILLS:
        killed += run_in_fork(work, folder, source.uniform(0.0, whole)) == -signal.SIGKILL
        if killed == KILLS or is_finished(folder):
            assert run_in_fork(work, folder) == 0
            folder.rename(folder.with_name(f"done {done}"))
            done += 1
