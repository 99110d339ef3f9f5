"""Workers stand back behind their run, and end with it, at whatever moment it is killed."""

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from torch.utils.data._utils import worker as torch_worker

from alltokens.annotate.write import annotate
from alltokens.data.loader import train_batches
from alltokens.data.order import Share
from alltokens.workers import begin_worker

from .annotate.toys import CPU, photo_folder, toy_annotator, toy_job
from .data.pictures import samples_of, source_of

ENDS_WITHIN = 60
"""Seconds; a worker that was forgotten never ends."""


def annotation(folder: Path) -> Callable[[], object]:
    job = toy_job(photo_folder(folder / "photos", 4), toy_annotator(3), top_k=2)
    assert job.plan.shards == 1  # Made here: networks do not run in a fork of a process that has threads.
    return lambda: annotate(job, folder / "store", replace(CPU, workers=1), lambda done, total: None)


def training(folder: Path) -> Callable[[], object]:
    batches = train_batches(samples_of(source_of(8)), Share(batch=2), range(1), workers=1)
    return lambda: next(batches)


@pytest.mark.parametrize("prepared", [annotation, training])
def test_a_worker_whose_run_was_killed_before_it_began_ends(
    prepared: Callable[[Path], Callable[[], object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begins = os.pipe()

    def begin_once_the_run_is_killed() -> None:
        run = os.getppid()
        os.write(begins, str(os.getpid()).encode())
        while os.getppid() == run:
            time.sleep(0.01)

    monkeypatch.setattr(torch_worker.signal_handling, "_set_worker_signal_handlers", begin_once_the_run_is_killed)
    process = multiprocessing.get_context("fork").Process(target=prepared(tmp_path))
    process.start()
    os.close(begins)
    worker = int(os.read(begun, 100))
    process.kill()
    process.join()
    try:
        # The worker has the last end of the pipe that can be written to.
        assert select.select([begun], [], [], ENDS_WITHIN)[0] == [begun]
        assert os.read(begun, 1) == b""
    finally:
        os.close(begun)
        if Path(f"/proc/{worker}").exists():
            os.kill(worker, signal.SIGKILL)


def test_a_run_that_still_has_its_loader_when_it_ends_does_not_wait_for_workers(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=training(tmp_path))
    process.start()
    process.join(ENDS_WITHIN)
    code = process.exitcode
    process.kill()
    assert code == 0


def main(method: str) -> None:
    """A program that begins workers in another way, whose group is told to end, and that ends with its loader."""
    multiprocessing.set_start_method(method)
    batches = train_batches(samples_of(source_of(8)), Share(batch=2), range(3), workers=2)
    for _ in range(2):  # One of each worker, which has begun then.
        next(batches)
    for worker in multiprocessing.active_children():
        subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)
    print(len([next(batches) for _ in range(9)]))
    globals()["kept"] = batches


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_that_are_not_forked_leave_signals_to_the_run_and_end_with_it(method: str) -> None:
    program = [sys.executable, "-m", "tests.test_workers", method]
    done = subprocess.run(program, capture_output=True, text=True, timeout=2 * ENDS_WITHIN)
    assert (done.stdout, done.returncode) == ("9\n", 0), done.stderr


def test_a_worker_stands_back_behind_its_run() -> None:
    def work() -> None:
        begin_worker(0)
        os._exit(os.nice(0))

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    worker.join()
    assert worker.exitcode == min(19, os.nice(0) + 10)


if __name__ == "__main__":
    main(sys.argv[1])
