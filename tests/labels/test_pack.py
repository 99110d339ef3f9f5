"""Packed label stores: every byte comes back, and an archive made to do harm is refused."""

import contextlib
import hashlib
import importlib
import io
import json
import random
import re
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from alltokens.errors import UserError
from alltokens.labels.pack import by_field, load_zstd, pack, unpack
from alltokens.labels.shards import begin
from alltokens.labels.store import LabelStore, verify

from .stores import KEYS, contents, plan_for, write_store

Members = dict[str, bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_store(tmp_path / "labels")


@pytest.fixture
def file(folder: Path, tmp_path: Path) -> Path:
    pack(folder, tmp_path / "labels.tar")
    return tmp_path / "labels.tar"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "unpacked" / "labels"


def members_of(file: Path) -> Members:
    with tarfile.open(file, "r:") as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def write_members(file: Path, members: Members) -> None:
    with tarfile.open(file, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_what_was_packed_is_unpacked_byte_for_byte(folder: Path, file: Path, target: Path) -> None:
    unpack(file, target)
    assert contents(target) == contents(folder)
    assert verify(target) == []
    assert LabelStore(target).keys() == KEYS


def test_the_archive_holds_a_frame_for_each_shard(file: Path) -> None:
    names = ["meta.json", "meta.json.sha256", "keys.zz", "unreadable.json"]
    assert list(members_of(file)) == [*names, *(f"shards/0000{number}.zst" for number in range(3))]


def test_a_frame_holds_the_fields_from_the_last_to_the_first(folder: Path, file: Path) -> None:
    shard = np.load(folder / "shards/00001.npy")
    fields = b"".join(shard[name].tobytes() for name in reversed(shard.dtype.names))
    assert load_zstd().decompress(members_of(file)["shards/00001.zst"]) == fields
    assert by_field((folder / "shards/00001.npy").read_bytes(), plan_for(), 1) == fields


def test_packing_again_makes_the_same_bytes(folder: Path, file: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == file.read_bytes()


def test_progress_counts_shards(folder: Path, file: Path, target: Path) -> None:
    steps: list[tuple[int, int]] = []
    pack(folder, file, lambda done, total: steps.append((done, total)))
    unpack(file, target, lambda done, total: steps.append((done, total)))
    assert steps == [(1, 3), (2, 3), (3, 3)] * 2


def test_many_shards_come_back(tmp_path: Path, target: Path) -> None:
    folder = write_store(tmp_path / "many", plan_for(records_per_shard=1))
    pack(folder, tmp_path / "many.tar")
    unpack(tmp_path / "many.tar", target)
    assert contents(target) == contents(folder)


def test_an_unfinished_store_is_not_packed(tmp_path: Path) -> None:
    begin(tmp_path / "labels", plan_for())
    with pytest.raises(UserError, match="is unfinished; run the same command again to finish it"):
        pack(tmp_path / "labels", tmp_path / "labels.tar")
    assert not (tmp_path / "labels.tar").exists()


@pytest.mark.parametrize("name", ["shards/00001.npy", "keys.zz", "unreadable.json", "index.npy"])
@pytest.mark.parametrize("harm", [lambda path: path.write_bytes(path.read_bytes()[::-1]), Path.unlink])
def test_a_damaged_store_is_not_packed(folder: Path, tmp_path: Path, name: str, harm: Callable[[Path], object]) -> None:
    harm(folder / name)
    sentence = f"'{folder / name}' is damaged, so the store is not packed; 'alltokens labels verify' finds what else is"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        pack(folder, tmp_path / "labels.tar")
    assert not (tmp_path / "labels.tar").exists()


def refused(file: Path, target: Path, reason: str) -> None:
    """With that reason, and nothing left behind."""
    sentence = f"'{file}' is damaged or no packed label store: {reason}"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}"):
        unpack(file, target)
    assert not target.exists()
    assert not target.parent.exists() or not list(target.parent.iterdir())


def test_a_missing_file_is_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(UserError, match=re.escape(f"there is no packed label store '{tmp_path / 'x.tar'}'")):
        unpack(tmp_path / "x.tar", target)


def test_a_folder_with_files_is_not_overwritten(file: Path, target: Path) -> None:
    target.mkdir(parents=True)
    unpack(file, target)
    sentence = f"'{target}' exists already; give a new or empty folder to unpack '{file}' into"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        unpack(file, target)


def test_the_folder_that_it_runs_in_is_not_replaced(file: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    sentence = "'.' cannot be written as a whole; give a folder in it, such as 'new'"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        unpack(file, ".")


def test_a_store_is_not_packed_over_a_folder(folder: Path, tmp_path: Path) -> None:
    steps: list[int] = []
    with pytest.raises(UserError, match=re.escape(f"cannot write '{tmp_path}': it is a folder; give the name of a")):
        pack(folder, tmp_path, lambda done, total: steps.append(done))
    assert steps == []


def test_what_a_packed_store_says_of_its_rows_comes_back(tmp_path: Path, target: Path) -> None:
    plan = plan_for(split="train", labels_sha256="1" * 64)
    pack(write_store(tmp_path / "labels", plan), tmp_path / "labels.tar")
    unpack(tmp_path / "labels.tar", target)
    assert LabelStore(target).plan == plan


def test_what_a_killed_unpacking_left_is_replaced(folder: Path, file: Path, target: Path) -> None:
    (target.parent / ".labels.part" / "shards").mkdir(parents=True)
    (target.parent / ".labels.part" / "shards" / "00000.npy").write_bytes(b"half")
    unpack(file, target)
    assert contents(target) == contents(folder)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it ends where the file 'meta.json' belongs"),
        (b"hello", "truncated header"),
        (b"hello" * 1000, "invalid header"),
        (bytes(10_240), "it ends where the file 'meta.json' belongs"),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, target: Path, content: bytes, reason: str) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    refused(tmp_path / "x.tar", target, reason)


def test_a_folder_that_cannot_be_created_is_refused(file: Path) -> None:
    with pytest.raises(
        UserError, match=re.escape(f"cannot create the folder '{file / '.labels.part' / 'shards'}': Not a")
    ):
        unpack(file, file / "labels")


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "shards/../../evil", "evil.txt", "shards/00003.zst"])
@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_member_that_does_not_belong_is_refused(file: Path, target: Path, name: str, place: int) -> None:
    members = list(members_of(file).items())
    expected = members[place][0]
    members.insert(place, (name, b"evil"))
    write_members(file, dict(members))
    refused(file, target, f"it has {name!r} where the file '{expected}' belongs")
    assert not Path("/tmp/evil").exists()


def test_a_member_after_the_last_is_refused(file: Path, target: Path) -> None:
    write_members(file, members_of(file) | {"shards/00003.zst": b"x"})
    refused(file, target, "it goes on after the last shard")


def test_a_missing_member_is_refused(file: Path, target: Path) -> None:
    members = members_of(file)
    del members["shards/00002.zst"]
    write_members(file, members)
    refused(file, target, "it ends where the file 'shards/00002.zst' belongs")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_member_that_is_no_file_is_refused(file: Path, target: Path, kind: bytes) -> None:
    members = members_of(file)
    with tarfile.open(file, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if name == "keys.zz":
                member.type, member.linkname = kind, "/etc/passwd"
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    refused(file, target, "it has 'keys.zz' where the file 'keys.zz' belongs")


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("size", [2**27, 2**60, -1])
def test_a_member_that_claims_more_than_the_archive_holds_is_refused(file: Path, target: Path, size: int) -> None:
    file.write_bytes(header("meta.json", size) + b"x" * 512)
    refused(file, target, f"'meta.json' in it claims {size:,} bytes, which it cannot have")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE])
def test_extended_headers_are_not_followed(file: Path, target: Path, kind: bytes) -> None:
    file.write_bytes(header("x", 2**40, kind) + file.read_bytes())
    refused(file, target, "it has 'x' where the file 'meta.json' belongs")


def test_a_frame_that_grows_without_end_is_stopped(file: Path, target: Path) -> None:
    members = members_of(file)
    bomb = load_zstd().compress(bytes(200_000_000))
    members["shards/00001.zst"] = bomb[:1000]
    write_members(file, members)
    tracemalloc.start()
    size = 4 * plan_for().dtype.itemsize
    refused(file, target, f"'shards/00001.zst' in it does not hold {size:,} bytes")
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


def test_a_frame_larger_than_any_of_its_records_is_not_read(file: Path, target: Path) -> None:
    write_members(file, members_of(file) | {"shards/00001.zst": bytes(100_000)})
    refused(file, target, "'shards/00001.zst' in it claims 100,000 bytes, which it cannot have")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda frame: b"hello", "'shards/00001.zst' in it is damaged"),
        (lambda frame: frame[:-5], "'shards/00001.zst' in it does not hold"),
        (lambda frame: frame + b"x", "'shards/00001.zst' in it does not hold"),
        (
            lambda frame: load_zstd().compress(bytes(4 * plan_for().dtype.itemsize)),
            "'shards/00001.npy' in it is damaged",
        ),
    ],
)
def test_a_damaged_frame_is_refused(file: Path, target: Path, change: Callable[[bytes], bytes], reason: str) -> None:
    members = members_of(file)
    members["shards/00001.zst"] = change(members["shards/00001.zst"])
    write_members(file, members)
    refused(file, target, reason)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("meta.json", "'meta.json' or 'meta.json.sha256' is damaged: the one is not "),
        ("meta.json.sha256", "'meta.json' or 'meta.json.sha256' is damaged: the one is not "),
        ("keys.zz", "'keys.zz' in it is damaged"),
        ("unreadable.json", "'unreadable.json' in it is damaged"),
    ],
)
def test_damage_beside_the_shards_is_refused(file: Path, target: Path, name: str, reason: str) -> None:
    members = members_of(file)
    members[name] = b"3" + members[name]
    write_members(file, members)
    refused(file, target, reason)


def test_a_later_format_is_named(folder: Path, file: Path, target: Path) -> None:
    members = members_of(file)
    meta = json.loads(members["meta.json"])
    meta["plan"]["format"] = 2
    members["meta.json"] = json.dumps(meta).encode()
    members["meta.json.sha256"] = f"{hashlib.sha256(members['meta.json']).hexdigest()}  meta.json\n".encode()
    write_members(file, members)
    refused(file, target, "'meta.json' cannot be used: the store has format 2, this version reads 1")


def test_random_damage_is_refused_or_does_no_harm(folder: Path, file: Path, target: Path) -> None:
    whole, chance = file.read_bytes(), random.Random(0)
    for _ in range(80):
        content = bytearray(whole)
        place = chance.randrange(len(content))
        match chance.choice("change cut insert".split()):
            case "change":
                content[place] ^= 1 << chance.randrange(8)
            case "cut":
                del content[place : place + chance.choice([1, 512, len(whole)])]
            case "insert":
                content[place:place] = chance.randbytes(chance.choice([1, 512]))
        file.write_bytes(content)
        with contextlib.suppress(UserError):
            unpack(file, target)
            assert contents(target) == contents(folder)
            for path in sorted(target.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()


def test_without_zstd_the_extra_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        UserError, match=re.escape("packed labels need zstd; install it with pip install 'alltokens[pack]'")
    ):
        pack(folder, tmp_path / "labels.tar")


def test_the_standard_library_comes_first() -> None:
    expected = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    assert load_zstd() is importlib.import_module(expected)
