"""A label store as one file to copy or download: a tar archive, each shard compressed."""

import hashlib
import io
import os
import shutil
import tarfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from alltokens.errors import UserError
from alltokens.files import checksum_path, require_name, sync_folder, write_atomically
from alltokens.labels.keys import build_index, unpack_keys
from alltokens.labels.meta import (
    INDEX,
    KEYS,
    META,
    UNREADABLE,
    Meta,
    Plan,
    Progress,
    checked_meta,
    npy_header,
    read_meta,
    shard_name,
    silent,
)
from alltokens.labels.shards import make_folder, npy_bytes

LEVEL = 17
"""Of zstd, on real maps: 2,833 bytes a record and 5.9 MB a second on one core; 16 has 2,965, 19 has 2,778 at 4.8 MB."""
COPIED = (META, META + ".sha256", KEYS, UNREADABLE)
"""Files that lie in the archive as they are, before the shards; the index is made again."""
SMALL = 1 << 28
"""Bytes: no meta.json is larger."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def pack(store: str | Path, file: str | Path, progress: Progress = silent) -> None:
    """Write a finished store as one file; a damaged one is refused."""
    store, zstd = Path(store), load_zstd()
    meta = read_meta(store)
    intact(store, meta, INDEX)

    def compressed(number: int) -> bytes:
        return zstd.compress(by_field(intact(store, meta, shard_name(number)), meta.plan, number), LEVEL)

    def write(output: BinaryIO) -> None:
        with tarfile.open(fileobj=output, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name in COPIED:
                add(archive, name, intact(store, meta, name) if name in meta.sums else (store / name).read_bytes())
            for number, content in enumerate(in_parallel(compressed, iter(range(meta.plan.shards)))):
                add(archive, member_name(number), content)
                progress(number + 1, meta.plan.shards)

    write_atomically(file, write)


def unpack(file: str | Path, store: str | Path, progress: Progress = silent) -> None:
    """Make the store that was packed, byte for byte; it is in its place only when all of it has been checked."""
    file, store = Path(file), Path(store)
    if not file.is_file():
        raise UserError(f"there is no packed label store '{file}'")
    if store.exists() and (not store.is_dir() or any(store.iterdir())):
        raise UserError(f"'{store}' exists already; give a new or empty folder to unpack '{file}' into")
    require_name(store)
    zstd = load_zstd()
    temporary = store.with_name(f".{store.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        make_folder(temporary / "shards")
        with refusals(file), file.open("rb") as archive:
            members = Members(archive)
            meta = unpack_meta(members, temporary)
            unpack_keys_and_index(members, temporary, meta)
            unpack_shards(members, temporary, meta, zstd, progress)
            members.require_end()
        os.replace(temporary, store)
        sync_folder(store.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class Refused(Exception):
    """What is wrong with an archive, as opposed to the disk it is unpacked to."""


class Members:
    """The members of an archive one after the other, each named beforehand.

    Headers are read one by one: tarfile's own reader follows extended ones, which can ask for any amount of memory.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size = file, os.fstat(file.fileno()).st_size

    def take(self, name: str, most: int) -> bytes:
        """The content of the next member, which has this name and at most so many bytes."""
        block = self.file.read(tarfile.BLOCKSIZE)
        if not any(block):
            raise Refused(f"it ends where the file '{name}' belongs")
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if member.name != name or not member.isreg():
            raise Refused(f"it has {member.name!r} where the file '{name}' belongs")
        if not 0 <= member.size <= min(most, self.size - self.file.tell()):
            raise Refused(f"'{name}' in it claims {member.size:,} bytes, which it cannot have")
        content = self.file.read(member.size)
        self.file.read(-member.size % tarfile.BLOCKSIZE)
        return content

    def require_end(self) -> None:
        """Nothing comes after what belongs there."""
        if any(self.file.read(tarfile.BLOCKSIZE)):
            raise Refused("it goes on after the last shard")


def unpack_meta(members: Members, folder: Path) -> Meta:
    """Both files that say what the store is."""
    for name in (META, checksum_path(Path(META)).name):
        save(folder / name, members.take(name, SMALL))
    try:
        return checked_meta(folder)
    except UserError as error:
        raise Refused(str(error).replace(f"{folder}{os.sep}", "")) from error


def unpack_keys_and_index(members: Members, folder: Path, meta: Meta) -> None:
    """Keys and reasons as they are, the index from the keys."""
    for name in (KEYS, UNREADABLE):
        save_intact(folder, meta, name, members.take(name, members.size))
    keys = unpack_keys((folder / KEYS).read_bytes(), meta.plan.images)
    save_intact(folder, meta, INDEX, npy_bytes(build_index(keys)))


def unpack_shards(members: Members, folder: Path, meta: Meta, zstd: Any, progress: Progress) -> None:
    """Decompressed by several threads, read by one."""
    plan = meta.plan

    def save_shard(shard: tuple[int, bytes]) -> None:
        number, packed = shard
        name, size = shard_name(number), plan.records_of(number) * plan.dtype.itemsize
        unpacker = zstd.ZstdDecompressor()
        # One byte more than expected is enough to know that it is too long, however long it would become.
        try:
            content = unpacker.decompress(packed, size + 1)
        except zstd.ZstdError as error:
            raise Refused(f"'{member_name(number)}' in it is damaged") from error
        if len(content) != size or not unpacker.eof or unpacker.unused_data:
            raise Refused(f"'{member_name(number)}' in it does not hold {size:,} bytes")
        save_intact(folder, meta, name, by_record(content, plan, number))

    def packed_shards() -> Iterator[tuple[int, bytes]]:
        for number in range(plan.shards):
            # What cannot be compressed grows by less than this.
            size = plan.records_of(number) * plan.dtype.itemsize
            yield number, members.take(member_name(number), size + size // 128 + 1024)

    for done, _ in enumerate(in_parallel(save_shard, packed_shards()), start=1):
        progress(done, plan.shards)


def by_field(shard: bytes, plan: Plan, number: int) -> bytes:
    """A shard's records one field after the other, which compresses an eighth better."""
    count = plan.records_of(number)
    records = np.frombuffer(shard, plan.dtype, offset=len(npy_header(plan.dtype, count)))
    return b"".join(records[name].tobytes() for name in reversed(plan.dtype.names or ()))


def by_record(content: bytes, plan: Plan, number: int) -> bytes:
    """The shard whose fields these are."""
    records = np.empty(plan.records_of(number), plan.dtype)
    start = 0
    for name in reversed(plan.dtype.names or ()):
        field = records[name]
        values = np.frombuffer(content, field.dtype, field.size, start)
        records[name] = values.reshape(field.shape)
        start += field.nbytes
    return npy_bytes(records)


def in_parallel(function: Callable[[Item], Result], items: Iterator[Item]) -> Iterator[Result]:
    """Results in order, by a thread a core; no more of them wait than there are threads."""
    threads = os.process_cpu_count() if hasattr(os, "process_cpu_count") else len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def intact(store: Path, meta: Meta, name: str) -> bytes:
    """A file of the store as it was written."""
    path = store / name
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != meta.sums[name]:
        raise UserError(
            f"'{path}' is damaged, so the store is not packed; 'alltokens labels verify' finds what else is"
        )
    return content


def save_intact(folder: Path, meta: Meta, name: str, content: bytes) -> None:
    """Write a file of the store if it is what meta.json says."""
    if hashlib.sha256(content).hexdigest() != meta.sums[name]:
        raise Refused(f"'{name}' in it is damaged")
    save(folder / name, content)


def save(path: Path, content: bytes) -> None:
    """Write a whole file."""
    write_atomically(path, lambda file: file.write(content))


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """A member with nothing in it that differs from one machine or day to another."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def member_name(number: int) -> str:
    """Where a shard lies in the archive."""
    return f"shards/{number:05}.zst"


@contextmanager
def refusals(file: Path) -> Iterator[None]:
    """Whatever is wrong with an archive, in one sentence that names it."""
    try:
        yield
    except UserError:
        raise
    except (Refused, tarfile.TarError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"'{file}' is damaged or no packed label store: {reason}") from error


def load_zstd() -> Any:
    """The zstd of the standard library from Python 3.14, and before that the same from PyPI."""
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            return import_module(name)
    raise UserError("packed labels need zstd; install it with pip install 'alltokens[pack]'")
