"""How the worker processes of loaders begin and end."""

import multiprocessing
import os
import signal
from functools import cache
from multiprocessing import util
from threading import Thread

NICENESS = 10
"""By how much workers stand back behind their run."""


def begin_worker(place: int) -> None:
    """Leave it to the run what signals do that reach a whole group of processes, and end when the run ends.

    Those are Ctrl-C and what torchrun, Slurm and `timeout` stop with; without its workers a run could not save.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # There are as many workers as cores; what a GPU waits for is the process that hands it its work.
    os.nice(NICENESS)
    Thread(target=end_with_the_run, daemon=True).start()


def end_with_the_run() -> None:
    """torch's own watch misses a run that was killed while its workers began, and they would wait for ever."""
    run = multiprocessing.parent_process()
    assert run is not None, "a worker was begun by a process"
    run.join()
    os._exit(1)


def end_workers_at_exit() -> None:
    """For a run before its first worker.

    At its exit Python asks workers to end that something still refers to, by a signal that they leave to the run, and
    waits for them.
    """
    kill_before_waiting(os.getpid())


@cache
def kill_before_waiting(run: int) -> None:
    """Once in each process: one that was forked does not end as the one before would."""
    util.Finalize(None, kill_workers, exitpriority=0)


def kill_workers() -> None:
    """Those that Python is about to wait for."""
    # torch would raise for workers that are killed.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()
