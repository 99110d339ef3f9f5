"""Files are written whole or not at all, and damage is noticed."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from alltokens.errors import UserError
from alltokens.files import tidy_folder, verify, whole_folder, write_atomically, write_folder

from .faults import calls_of, needs_strace, run_with_fault

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


@pytest.mark.parametrize("name", ["folder", "."])
def test_a_folder_where_the_file_belongs_is_an_error_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    written = []
    with pytest.raises(UserError) as raised:
        write_atomically(name, written.append)
    assert str(raised.value) == f"cannot write '{name}': it is a folder; give the name of a file"
    assert (written, names(tmp_path)) == ([], ["folder"])


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


def fill_with(content: bytes):
    """A filler that answers with what it wrote."""

    def fill(folder: Path) -> bytes:
        write_atomically(folder / "a.bin", lambda file: file.write(content))
        return content

    return fill


def test_a_folder_is_written_and_its_fillers_answer_handed_on(tmp_path):
    assert write_folder(tmp_path / "folder", fill_with(b"new")) == b"new"
    assert names(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "a.bin").read_bytes() == b"new"


def test_a_folder_replaces_an_older_one_whole(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "older.bin").write_bytes(b"old")
    write_folder(tmp_path / "folder", fill_with(b"new"))
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["a.bin"]


def test_an_older_folder_stays_when_its_successor_fails(tmp_path):
    write_folder(tmp_path / "folder", fill_with(b"old"))

    def fail(folder: Path) -> None:
        (folder / "half.bin").write_bytes(b"half of the new")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_folder(tmp_path / "folder", fail)
    assert names(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "a.bin").read_bytes() == b"old"


def test_a_place_that_takes_no_folder_is_one_sentence(tmp_path):
    path = tmp_path / "none" / "folder"
    with pytest.raises(UserError) as raised:
        write_folder(path, fill_with(b"new"))
    assert str(raised.value) == f"cannot write '{path}': '{path.parent}' takes no folder (No such file or directory)"


def test_a_folder_without_a_name_is_one_sentence():
    with pytest.raises(UserError) as raised:
        write_folder(Path("."), fill_with(b"new"))
    assert str(raised.value) == "'.' cannot be written as a whole; give a folder in it, such as 'new'"


def test_what_killed_writes_left_is_found_and_put_right(tmp_path):
    path = tmp_path / "a [folder]"
    assert whole_folder(path) is None
    tidy_folder(path)
    assert names(tmp_path) == []
    for place, mark in enumerate(["0123abcd", "89abcdef"]):
        for kind in ("old", "part"):
            left = tmp_path / f".{path.name}.{mark}.{kind}"
            left.mkdir()
            (left / "a.bin").write_bytes(kind.encode() + mark.encode())
            os.utime(left, (place, place))
    others = [".a [folder].old", ".a [folder] 2.0123abcd.old", ".other.0123abcd.part"]
    for other in others:
        (tmp_path / other).mkdir()
    newest = tmp_path / ".a [folder].89abcdef.old"
    assert whole_folder(path) == newest
    tidy_folder(path)
    assert whole_folder(path) == path
    assert (path / "a.bin").read_bytes() == b"old89abcdef"
    assert names(tmp_path) == sorted([*others, path.name])


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["signal=KILL", "error=ENOSPC", "error=EIO"])
def test_a_fault_at_every_call_of_replacing_a_folder_keeps_one_of_the_two(tmp_path, fault):
    path = tmp_path / "run" / "folder"
    path.parent.mkdir()

    def write() -> None:
        write_folder(path, fill_with(b"new"))

    write_folder(path, fill_with(b"old"))
    for call in calls_of(write):
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        write_folder(path, fill_with(b"old"))
        status = run_with_fault(write, call, fault)
        whole = whole_folder(path)
        assert whole is not None, call
        assert status == -signal.SIGKILL or whole == path, call
        assert (whole / "a.bin").read_bytes() in ((b"new",) if status == 0 else (b"old", b"new")), call
        tidy_folder(path)
        write()
        assert names(path.parent) == ["folder"], call
