"""Images in tar files, read where they lie: nothing is unpacked."""

import json
import os
import tarfile
from array import array
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import PurePath

from alltokens.errors import UserError
from alltokens.sources.decode import ENDINGS, said_by
from alltokens.sources.folder import BYTE_ENDINGS
from alltokens.sources.source import Names, Source, text

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Compressed ones are taken too, to be refused by name."""
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""What compressed files begin with."""
BLOCK = 512
LONGEST_LABEL = 2**20
"""Bytes of a member that may hold a class; a longer one is no label."""
LARGEST_CLASS = 2**24
"""Far above any data set's; a number that is no class would otherwise fill the memory with names."""


@dataclass(frozen=True)
class ReadMember:
    """The bytes of an image within one of the tars."""

    paths: tuple[str, ...]
    tars: Sequence[int]
    offsets: Sequence[int]
    sizes: Sequence[int]

    def __call__(self, index: int) -> bytes:
        # Opened for each read, which takes microseconds: there may be more shards than a process may hold open files,
        # and nothing is shared between threads or forked processes.
        file = os.open(self.paths[self.tars[index]], os.O_RDONLY)
        try:
            data = os.pread(file, self.sizes[index], self.offsets[index])
        finally:
            os.close(file)
        if len(data) < self.sizes[index]:
            raise OSError(f"'{self.paths[self.tars[index]]}' has become shorter")
        return data


@dataclass
class Index:
    """What has been found in the tars so far."""

    keys: list[bytes] = field(default_factory=list)
    folders: list[bytes] = field(default_factory=list)
    """First folder of each image's path, empty where it has none."""
    samples: list[bytes] = field(default_factory=list)
    """What WebDataset takes as the name of each image's sample: its key up to the first dot of the file name."""
    tars: MutableSequence[int] = field(default_factory=lambda: array("i"))
    offsets: MutableSequence[int] = field(default_factory=lambda: array("q"))
    sizes: MutableSequence[int] = field(default_factory=lambda: array("q"))
    labels: dict[bytes, str] = field(default_factory=dict)
    """The class of each sample that states one."""


def tar_shards(data: str) -> list[str]:
    """The tars that the data stands for, sorted; none where it is a folder of something else, or nothing at all."""
    if os.path.isfile(data):
        return [data]
    if not os.path.isdir(data):
        return sorted(filter(os.path.isfile, glob(data, recursive=True)))
    shards = []
    try:
        names = os.listdir(data)
    except PermissionError:
        return []  # to be refused as the image folder that it may be
    for name in names:
        path = os.path.join(data, name)
        if name.startswith("."):
            continue
        if name.lower().endswith(ENDINGS) or os.path.isdir(path):
            return []  # images and class folders make it an image folder, whatever lies beside them
        if name.lower().endswith(TAR_ENDINGS):
            shards.append(path)
    return sorted(shards)


def open_tars(data: str, paths: Sequence[str]) -> Source:
    """In the order of the tars; several of them, or one of a pattern or folder, put their names before the keys."""
    found = Index()
    for number, path in enumerate(paths):
        prefix = "" if os.path.isfile(data) else PurePath(path).stem + "/"
        try:
            read_index(path, number, os.fsencode(prefix), found)
        except UserError:
            raise
        except Exception as error:  # damaged bytes make tarfile raise anything
            raise UserError(
                f"'{path}' is damaged or no tar ({said_by(error)}); give a folder of images or tar files"
            ) from error
    classes, labels = classes_and_labels(data, found)
    names = Names.of(found.keys)
    read = ReadMember(tuple(map(os.path.abspath, paths)), found.tars, found.offsets, found.sizes)
    return Source(data, names.keys(), labels, classes, read)


def read_index(path: str, number: int, prefix: bytes, found: Index) -> None:
    """Add a tar's images and labels to the index."""
    with open(path, "rb") as file:
        require_uncompressed(path, file.read(BLOCK))
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            end = -1
            while (member := archive.next()) is not None:
                # A damaged size can lead back to an earlier header, and so round for ever.
                if archive.offset <= end:
                    raise ValueError(f"a member of negative size at byte {end}")
                end = archive.offset
                # tarfile keeps all members otherwise, about a kilobyte each.
                archive.members.clear()  # type: ignore[attr-defined]
                if member.isreg() and not member.issparse():
                    add_member(file.fileno(), member, number, prefix, found)
            # tarfile takes a cut or damaged header for the end; the true one is zeros up to a few records.
            tail = os.pread(file.fileno(), 2**20, archive.offset)
    if len(tail) < BLOCK or tail.strip(b"\0"):
        raise UserError(f"'{path}' is truncated, damaged or several tars in one file; make it again")


def require_uncompressed(path: str, start: bytes) -> None:
    """A compressed tar can be read from its start alone."""
    for magic, kind in COMPRESSED.items():
        if start.startswith(magic):
            raise UserError(
                f"'{path}' is compressed with {kind}, so single images cannot be read from it; decompress it first"
            )


def add_member(file: int, member: tarfile.TarInfo, number: int, prefix: bytes, found: Index) -> None:
    """An image's place, or a sample's class."""
    parts = [part for part in member.name.encode("utf-8", "surrogateescape").split(b"/") if part not in (b"", b".")]
    if not parts or any(part.startswith(b".") for part in parts):
        return  # hidden, as in a folder
    key = prefix + b"/".join(parts)
    name, _, ending = parts[-1].partition(b".")
    sample = key[: len(key) - len(parts[-1])] + name
    ending = ending.lower()
    if parts[-1].lower().endswith(BYTE_ENDINGS):
        found.keys.append(key)
        found.folders.append(parts[0] if len(parts) > 1 else b"")
        found.samples.append(sample)
        found.tars.append(number)
        found.offsets.append(member.offset_data)
        found.sizes.append(member.size)
    elif ending in (b"cls", b"json") and member.size <= LONGEST_LABEL:
        content = os.pread(file, member.size, member.offset_data).decode("utf-8", "backslashreplace")
        label = content.strip() if ending == b"cls" else label_in_json(content)
        if label and (ending == b"cls" or sample not in found.labels):
            found.labels[sample] = label


def label_in_json(content: str) -> str:
    """The class as text; empty where the JSON states none."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    values = [fields.get(name) for name in ("cls", "label")] if isinstance(fields, dict) else []
    return next((str(value).strip() for value in values if type(value) in (int, str)), "")


def classes_and_labels(data: str, found: Index) -> tuple[tuple[str, ...], Sequence[int]]:
    """From the samples' classes, numbers or texts, where any states one; from the first folders otherwise."""
    if not found.labels:
        stated = [text(folder) for folder in found.folders]
    else:
        stated = [found.labels.get(sample, "") for sample in found.samples]
        numbers = [number_in(label) for label in stated if label]
        if numbers and None not in numbers:
            return numbered(data, [int(label) if label else -1 for label in stated])
    classes = sorted(set(stated) - {""})
    place = {name: label for label, name in enumerate(classes)} | {"": -1}
    return tuple(classes), array("i", [place[name] for name in stated])


def number_in(label: str) -> int | None:
    """A class number, -1 included."""
    digits = label.removeprefix("-")
    return int(label) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def numbered(data: str, labels: list[int]) -> tuple[tuple[str, ...], Sequence[int]]:
    """Classes up to the largest number there is."""
    for label in (min(labels), max(labels)):
        if not -1 <= label < LARGEST_CLASS:
            raise UserError(
                f"'{data}' has an image of class {label}; class numbers go from 0 to {LARGEST_CLASS - 1}, "
                "and -1 stands for no class"
            )
    return tuple(map(str, range(max(labels) + 1))), array("i", labels)
