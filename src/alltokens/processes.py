"""The processes of a torchrun, one or many, and what they tell each other."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from alltokens.errors import UserError

Value = TypeVar("Value")
LONGEST_WAIT = timedelta(days=7)
"""For the slowest of them; torch's half an hour is for steps of training."""
SECONDS_TO_LET_GO = 0.2
"""For gloo's threads, between the end of a collective and the end of the interpreter."""
GROUPS = count()
"""Numbers for the groups that these processes form, one after the other."""
LOCK = ".lock.part"
"""In a folder that is being written; named as temporary files are, so that what a killed run leaves of it is cleared
away as they are."""


def is_first_process() -> bool:
    """The only one that speaks."""
    return os.environ.get("RANK", "0") == "0"


@dataclass(frozen=True)
class Processes:
    """This process among those that share the work."""

    rank: int
    count: int

    @staticmethod
    @contextmanager
    def of_torchrun() -> Iterator["Processes"]:
        """As torchrun's environment says; without it there is one process."""
        processes = Processes(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
        if processes.count == 1:
            yield processes
            return
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        store, rank, size = next(rendezvous("env://", timeout=LONGEST_WAIT))
        # torchrun's store still has the addresses of processes before a restart, and of the group before, which nobody
        # answers.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = distributed.PrefixStore(f"attempt {attempt}, group {next(GROUPS)}", store)  # type: ignore[attr-defined]
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=LONGEST_WAIT)
        try:
            yield processes
        finally:
            distributed.destroy_process_group()
            # A group outlives this where torch's caches of meshes know it, and with it gloo's threads. One that has yet
            # to let go of its last tensor when the interpreter ends aborts the process (pytorch issue 190489).
            time.sleep(SECONDS_TO_LET_GO)

    def agree(self, decide: Callable[[], Value]) -> Value:
        """What the first process finds, in all of them; a user's mistake too, or the others would wait in vain."""
        if self.count == 1:
            return decide()
        found: list[Any] = [None]
        if self.rank == 0:
            try:
                found = [decide()]
            except UserError as error:
                found = [error]
        distributed.broadcast_object_list(found)
        if isinstance(found[0], UserError):
            raise found[0]
        return found[0]

    @contextmanager
    def alone_in(self, folder: Path) -> Iterator[None]:
        """Hold a folder, which need not exist, against other runs; a killed run lets go of it by itself."""
        is_new, held = not folder.exists(), list[BinaryIO]()
        self.agree(lambda: held.append(locked(folder)))
        try:
            yield
        finally:
            for lock in held:
                (folder / LOCK).unlink(missing_ok=True)
                lock.close()
                if is_new and not any(folder.iterdir()):
                    folder.rmdir()

    def gather(self, value: Value) -> list[Value]:
        """What each of them has, in the order of their ranks."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Until all of them are here."""
        if self.count > 1:
            distributed.barrier()


def locked(folder: Path) -> BinaryIO:
    """The lock of a folder, which lasts until it is closed."""
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / LOCK).open("ab")
    except OSError as error:
        raise UserError(f"cannot write to '{folder}': {error.strerror}; give a folder in an existing one") from error
    try:
        # Not flock, whose locks go on in the loader's workers, which outlive a killed run by seconds.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise UserError(f"another run is writing to '{folder}'; wait for it, or give another folder") from error
    return lock
