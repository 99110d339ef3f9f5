"""Every file and folder is written here: whole or not at all, with a checksum beside it where that is asked for."""

import errno
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from alltokens.errors import UserError, require

Value = TypeVar("Value")


def write_atomically(path: str | Path, write: Callable[[BinaryIO], object], checksum: bool = False) -> None:
    """Let `write` fill a temporary neighbour of `path`, then rename it over: a reader sees the old file or the new."""
    path = Path(path)
    # Before any work is done: the rename would find it at the end. Whatever else is wrong is said below.
    require(not os.path.isdir(path), f"cannot write '{path}': it is a folder; give the name of a file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with create(temporary, path) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        # A crash in what follows then leaves a file without a checksum, never one beside another file's checksum.
        checksum_path(path).unlink(missing_ok=True)
        os.replace(temporary, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"cannot write '{path}': the disk is full; free some space and run again") from error
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    if checksum:
        write_checksum(path)


def write_folder(path: Path, fill: Callable[[Path], Value]) -> Value:
    """Let `fill` fill a temporary neighbour of the folder, then rename it, over an older one if need be."""
    require_name(path)
    mark = secrets.token_hex(4)
    temporary, older = path.with_name(f".{path.name}.{mark}.part"), path.with_name(f".{path.name}.{mark}.old")
    try:
        temporary.mkdir()
    except OSError as error:
        raise UserError(f"cannot write '{path}': '{path.parent}' takes no folder ({error.strerror})") from error
    try:
        value = fill(temporary)
        if path.exists():
            os.rename(path, older)
        os.rename(temporary, path)
    finally:
        if older.exists() and not path.exists():
            os.rename(older, path)
        shutil.rmtree(temporary, ignore_errors=True)
    # Only what is certain to stay takes the older one's place.
    sync_folder(path.parent)
    shutil.rmtree(older, ignore_errors=True)
    return value


def require_name(path: Path) -> None:
    """Raise for `.` and `/`, which no other folder can be renamed to."""
    require(bool(path.name), f"'{path}' cannot be written as a whole; give a folder in it, such as '{path / 'new'}'")


def whole_folder(path: Path) -> Path | None:
    """Where the folder lies: beside its name after a kill between the two renames of `write_folder`, if anywhere."""
    return path if path.exists() else next(iter(leftovers(path, "old")), None)


def tidy_folder(path: Path) -> None:
    """Put right what killed calls of `write_folder` left; for a folder that no other process is writing."""
    whole = whole_folder(path)
    if whole not in (None, path):
        os.rename(whole, path)
    for left in leftovers(path, "old") + leftovers(path, "part"):
        shutil.rmtree(left, ignore_errors=True)


def leftovers(path: Path, kind: str) -> list[Path]:
    """The temporary neighbours of a folder, newest first: there is more than one only where removing them failed."""
    found = path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.{kind}")
    return sorted(found, key=lambda left: left.stat().st_mtime_ns, reverse=True)


def write_checksum(path: Path) -> None:
    """Put a file's checksum beside it."""
    line = checksum_line(path)
    write_atomically(checksum_path(path), lambda file: file.write(line))


def verify(path: str | Path) -> None:
    """Raise unless the file is the one its checksum was taken of."""
    path = Path(path)
    beside = checksum_path(path)
    for needed in (path, beside):
        if not needed.is_file():
            raise UserError(f"'{needed}' does not exist; '{path.name}' and '{beside.name}' belong together")
    if beside.read_bytes() != checksum_line(path):
        raise UserError(
            f"'{path}' or '{beside.name}' is damaged: the one is not the checksum of the other; "
            "write or download both again"
        )


def checksum_path(path: Path) -> Path:
    """`model.safetensors` has its checksum in `model.safetensors.sha256`."""
    return path.with_name(path.name + ".sha256")


def checksum_line(path: Path) -> bytes:
    """What the file beside it holds, in the layout of sha256sum, so that `sha256sum --check` reads it too."""
    return f"{sha256(path)}  {path.name}\n".encode("utf-8", "surrogateescape")


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def create(temporary: Path, path: Path) -> BinaryIO:
    """Open a file that must not exist yet; the folder is the user's to provide."""
    try:
        return temporary.open("xb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"cannot write '{path}': '{path.parent}' is not a folder; create it first") from error
    except PermissionError as error:
        raise UserError(f"cannot write '{path}': no permission to write in '{path.parent}'") from error


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
