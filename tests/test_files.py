"""Files are written whole or not at all, and damage is noticed."""

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from alltokens.errors import UserError
from alltokens.files import verify, write_atomically

FILL_AND_DIE = """
import os, sys
from alltokens.files import write_atomically
def write(file):
    file.write(b"half of the new")
    file.flush()
    os.kill(os.getpid(), 9)
write_atomically(sys.argv[1], write)
"""


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_new_file_holds_what_was_written_and_nothing_else_is_left(tmp_path):
    write_atomically(tmp_path / "a.bin", lambda file: file.write(b"abc"))
    assert (tmp_path / "a.bin").read_bytes() == b"abc"
    assert names(tmp_path) == ["a.bin"]


def test_an_old_file_is_replaced(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old and longer")
    write_atomically(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"


def test_an_exception_midway_keeps_the_old_file_and_leaves_no_temporary(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def write_half(file):
        file.write(b"half of the new")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_atomically(path, write_half)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_a_kill_midway_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    finished = subprocess.run([sys.executable, "-c", FILL_AND_DIE, path], check=False)
    assert finished.returncode == -9
    assert path.read_bytes() == b"old"


def test_the_mode_follows_the_umask_as_for_any_new_file(tmp_path):
    write_atomically(tmp_path / "a.bin", lambda file: file.write(b"abc"))
    (tmp_path / "plain.bin").write_bytes(b"abc")
    assert stat.S_IMODE(os.stat(tmp_path / "a.bin").st_mode) == stat.S_IMODE(os.stat(tmp_path / "plain.bin").st_mode)


def test_a_checksum_is_verified(tmp_path):
    write_atomically(tmp_path / "a.bin", lambda file: file.write(b"abc"), checksum=True)
    assert names(tmp_path) == ["a.bin", "a.bin.sha256"]
    verify(tmp_path / "a.bin")


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_sha256sum_reads_the_checksum(tmp_path):
    write_atomically(tmp_path / "a.bin", lambda file: file.write(b"abc"), checksum=True)
    subprocess.run(["sha256sum", "--check", "--strict", "a.bin.sha256"], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize(("name", "content"), [("a.bin", b"abd"), ("a.bin.sha256", b"\xff"), ("a.bin.sha256", b"")])
def test_a_damaged_file_or_checksum_is_named(tmp_path, name, content):
    path = tmp_path / "a.bin"
    write_atomically(path, lambda file: file.write(b"abc"), checksum=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as raised:
        verify(path)
    assert str(raised.value) == (
        f"'{path}' or 'a.bin.sha256' is damaged: the one is not the checksum of the other; write or download both again"
    )


def test_a_missing_checksum_is_an_error(tmp_path):
    path = tmp_path / "a.bin"
    write_atomically(path, lambda file: file.write(b"abc"))
    with pytest.raises(UserError) as raised:
        verify(path)
    assert str(raised.value) == f"'{path}.sha256' does not exist; 'a.bin' and 'a.bin.sha256' belong together"


def test_a_failed_write_keeps_the_old_file_and_its_checksum(tmp_path):
    path = tmp_path / "a.bin"
    write_atomically(path, lambda file: file.write(b"abc"), checksum=True)

    def fail(file):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_atomically(path, fail, checksum=True)
    assert path.read_bytes() == b"abc"
    verify(path)


def test_replacing_a_file_without_a_checksum_removes_the_old_one(tmp_path):
    path = tmp_path / "a.bin"
    write_atomically(path, lambda file: file.write(b"abc"), checksum=True)
    write_atomically(path, lambda file: file.write(b"new"))
    assert names(tmp_path) == ["a.bin"]


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(UserError) as raised:
        write_atomically(tmp_path / "no" / "a.bin", lambda file: file.write(b"abc"))
    assert str(raised.value) == (
        f"cannot write '{tmp_path}/no/a.bin': '{tmp_path}/no' is not a folder; create it first"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError) as raised:
        write_atomically(tmp_path / "a.bin", lambda file: file.write(b"abc"))
    assert str(raised.value) == f"cannot write '{tmp_path}/a.bin': no permission to write in '{tmp_path}'"


def test_a_full_disk_is_an_error(tmp_path):
    def write(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError) as raised:
        write_atomically(tmp_path / "a.bin", write)
    assert str(raised.value) == (f"cannot write '{tmp_path}/a.bin': the disk is full; free some space and run again")
    assert names(tmp_path) == []
