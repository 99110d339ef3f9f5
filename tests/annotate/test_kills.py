"""Whatever ends a run, what was finished is there, no half file is read as whole, and the same command goes on."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch

from alltokens.annotate.write import annotate
from alltokens.errors import UserError
from alltokens.labels.shards import begin, finish, finished_shards, write_shard
from alltokens.labels.store import LabelStore, verify

from ..faults import calls_of, needs_strace, run_with_fault
from .toys import CPU, files_of, photo_folder, toy_job

COMMAND = Path(sys.executable).with_name("alltokens")
KILLED = -signal.SIGKILL


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A store that nothing went wrong with: two shards, and an image that could not be read."""
    data = photo_folder(tmp_path / "data", 6)
    (data / "cat" / "002.png").write_bytes(b"no image")
    annotate(toy_job(data), tmp_path / "finished", CPU, lambda done, total: None)
    return tmp_path / "finished"


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["signal=KILL", "error=ENOSPC", "error=EIO"])
def test_a_fault_at_every_call_of_the_writing_loses_nothing(tmp_path: Path, finished: Path, fault: str):
    store, wanted, opened = tmp_path / "store", files_of(finished), LabelStore(finished)
    plan, keys = opened.plan, opened.keys()
    shards = [opened.records(torch.tensor(list(plan.rows_of(number))).numpy()) for number in range(plan.shards)]
    reasons = {keys.index(key): reason for key, reason in opened.unreadable.items()}
    assert plan.shards == 2

    def write() -> None:
        begin(store, plan)
        for number in sorted({0, 1} - finished_shards(store, plan)):
            rows = plan.rows_of(number)
            write_shard(
                store, number, shards[number], {row - rows.start: why for row, why in reasons.items() if row in rows}
            )
        finish(store, plan, keys)

    calls = calls_of(write)
    assert {"openat", "write", "fsync", "rename", "unlink"} <= {name for name, _ in calls}
    assert files_of(store) == wanted
    for call in calls:
        shutil.rmtree(store)
        status = run_with_fault(write, call, fault)
        assert status == KILLED if fault == "signal=KILL" else status in (0, 1)
        for number in finished_shards(store, plan) if store.exists() else ():
            assert (store / "shards" / f"{number:05}.npy").read_bytes() == wanted[f"shards/{number:05}.npy"], call
        try:
            LabelStore(store)
        except UserError:
            pass
        else:
            assert files_of(store) == wanted, call
        write()
        assert files_of(store) == wanted, call


@pytest.mark.slow
def test_twenty_runs_killed_at_random_moments_end_byte_identical(tmp_path: Path):
    data = photo_folder(tmp_path / "data", 60)
    command = [sys.executable, "-m", "tests.annotate.killed_runs", str(data), str(tmp_path / "store")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    stores = list(tmp_path.glob("done *"))
    assert stores
    for store in stores:
        assert files_of(store) == files_of(tmp_path / "whole")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A whole command line, its store left out at the end."""
    data = photo_folder(tmp_path / "data", 600)
    torch.manual_seed(0)
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "weights.pth")
    flags = ["--annotator", "timm/test_resnet", "--checkpoint", str(tmp_path / "weights.pth"), "--size", "64"]
    return [str(COMMAND), "annotate", *flags, "--workers", "1", str(data)]


@pytest.mark.slow
def test_the_command_itself_goes_on_after_a_kill_and_two_processes_do_as_one(tmp_path: Path, command: list[str]):
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    wanted = files_of(tmp_path / "whole")
    killed = subprocess.Popen([*command, str(tmp_path / "store")], stderr=subprocess.DEVNULL)
    while killed.poll() is None and not list((tmp_path / "store").glob("shards/*.json")):
        time.sleep(0.02)
    killed.kill()
    assert killed.wait() == KILLED
    subprocess.run([*command, str(tmp_path / "store")], check=True, capture_output=True)
    assert files_of(tmp_path / "store") == wanted
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    together = [*torchrun, *command, str(tmp_path / "two")]
    subprocess.run(together, check=True, capture_output=True)
    assert files_of(tmp_path / "two") == wanted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_a_sentence_and_the_same_command_goes_on_where_there_is_space(tmp_path: Path, small_disk: Path):
    job = toy_job(photo_folder(tmp_path / "data", 40))
    blocked = small_disk / "other"
    blocked.write_bytes(bytes(480_000))
    with pytest.raises(UserError, match=r"the disk is full; free some space and run again$"):
        annotate(job, small_disk / "store", CPU, lambda done, total: None)
    blocked.unlink()
    annotate(job, small_disk / "store", CPU, lambda done, total: None)
    assert verify(small_disk / "store") == []
