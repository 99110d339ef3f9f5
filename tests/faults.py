"""Every system call of an action made the last one, or made to fail, in forks of the test: strace sees to it."""

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable

import pytest

WRITING = [
    *["open", "openat", "creat", "write", "pwrite64", "writev", "ftruncate", "fsync", "fdatasync", "close"],
    *["rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"],
]
"""The system calls that writing files is made of."""

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

Call = tuple[str, int]
"""A system call's name, and which of the calls of that name it is, from 1."""


def calls_of(action: Callable[[], object]) -> list[Call]:
    """The calls that the action makes, in order."""
    log, status = traced(action, [])
    assert status == 0, log
    seen: Counter[str] = Counter()
    calls = []
    for name in re.findall(rf"^(?:\[pid +\d+\] )?({'|'.join(WRITING)})\(", log, re.MULTILINE):
        seen[name] += 1
        calls.append((name, seen[name]))
    return calls


def run_with_fault(action: Callable[[], object], call: Call, fault: str) -> int:
    """The exit status of the action when the call meets strace's fault, such as `signal=KILL` or `error=ENOSPC`.

    A killed action does not make the call; a failed call does nothing, and what the action makes of it is its own.
    """
    log, status = traced(action, ["-e", f"inject={call[0]}:{fault}:when={call[1]}"])
    assert "INJECTED" in log or "killed by SIGKILL" in log, log
    return status


def traced(action: Callable[[], object], options: list[str]) -> tuple[str, int]:
    """strace's log of the action in a fork, and how that ended: 0, 1 after an exception, -9 when killed."""
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    command = ["strace", "-f", "-p", str(child), "-e", f"trace={','.join(WRITING)}", *options]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    assert "attached" in (line := tracer.stderr.readline()), line
    os.kill(child, signal.SIGCONT)
    log = tracer.stderr.read()
    tracer.wait()
    tracer.stderr.close()
    return log, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
