"""The processes of a torchrun, one or many, and what they tell each other."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

Value = TypeVar("Value")
LONGEST_WAIT = timedelta(days=7)
"""For the slowest of them; torch's half an hour is for steps of training."""
SECONDS_TO_LET_GO = 0.2
"""For gloo's threads, between the end of a collective and the end of the interpreter."""
GROUPS = count()
"""Numbers for the groups that these processes form, one after the other."""


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
        """What the first process finds, in all of them."""
        if self.count == 1:
            return decide()
        found: list[Any] = [decide() if self.rank == 0 else None]
        distributed.broadcast_object_list(found)
        return found[0]

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
