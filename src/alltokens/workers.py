"""How the worker processes of loaders begin."""

import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess
from threading import Thread

NICENESS = 10
"""By how much workers stand back behind their run."""
CAN_ASK = hasattr(signal, "sigwaitinfo")
"""Whether a process can learn who sent it a signal; not on a Mac."""


def begin_worker(place: int) -> None:
    """Leave it to the run what signals do that reach a whole group of processes, and end when the run ends or says so.

    Those are Ctrl-C and what torchrun, Slurm and `timeout` stop with; without its workers a run could not save.
    """
    run = multiprocessing.parent_process()
    assert run is not None, "a worker was begun by a process"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # For all threads to come, so that it waits for the one that asks who sent it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # There are as many workers as cores; what a GPU waits for is the process that hands it its work.
    os.nice(NICENESS)
    Thread(target=end_with, args=(run,), daemon=True).start()
    if CAN_ASK:
        Thread(target=end_when_told_by, args=(run,), daemon=True).start()


def end_with(run: BaseProcess) -> None:
    """torch's own watch misses a run that was killed while its workers began, and they would wait for ever."""
    run.join()
    os._exit(1)


def end_when_told_by(run: BaseProcess) -> None:
    """Python waits at its exit for workers, which it has told to end, of loaders that something still refers to."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != run.pid:
        pass
    os._exit(0)
