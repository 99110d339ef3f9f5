"""Annotates a folder of images again and again, each time killed at a random moment, until twenty runs are dead.

    python -m tests.annotate.killed_runs DATA STORE

A process of its own, because it forks: none of torch's threads may run by then.
"""

import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from alltokens.annotate.write import annotate

from .toys import CPU, toy_job

KILLS = 20


def run_in_fork(data: Path, store: Path, seconds: float | None) -> int:
    """Annotate in a child that is killed after so many seconds; how it ended."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        annotate(toy_job(data), store, replace(CPU, workers=1), lambda done, total: None)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    data, store = map(Path, sys.argv[1:])
    start = time.perf_counter()
    assert run_in_fork(data, store.with_name("whole"), None) == 0
    whole = time.perf_counter() - start
    source, killed, done = random.Random(0), 0, 0
    while killed < KILLS:
        killed += run_in_fork(data, store, source.uniform(0.0, whole)) == -signal.SIGKILL
        if killed == KILLS or ((store / "meta.json").exists() and not (store / "unfinished.json").exists()):
            # The last time, or a store that was finished between two kills: the next run begins another.
            assert run_in_fork(data, store, None) == 0
            store.rename(store.with_name(f"done {done}"))
            done += 1


if __name__ == "__main__":
    main()
