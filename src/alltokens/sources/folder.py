"""A folder of images: its first-level folders are the classes, images lie anywhere below them."""

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from alltokens.errors import UserError
from alltokens.sources.decode import ENDINGS
from alltokens.sources.source import Names, Source, text

BYTE_ENDINGS = tuple(ending.encode() for ending in ENDINGS)


@dataclass(frozen=True)
class ReadFile:
    """The bytes of a file below the root."""

    root: bytes
    names: Names

    def __call__(self, index: int) -> bytes:
        with open(os.path.join(self.root, self.names.raw(index)), "rb") as file:
            return file.read()


def open_folder(data: str) -> Source:
    """Sorted by class, then by path; images outside of any class folder come first, with class -1."""
    # Names are bytes, as the system has them: not every one is UTF-8.
    root = os.path.abspath(os.fsencode(data))
    found: dict[bytes, list[bytes]] = {}
    for path in image_paths(root):
        folder, slash, _ = path.partition(b"/")
        found.setdefault(folder if slash else b"", []).append(path)
    paths = sorted(found.pop(b"", []))
    labels = array("i", [-1] * len(paths))
    folders = sorted(found)
    for label, folder in enumerate(folders):
        paths.extend(sorted(found[folder]))
        labels.extend([label] * len(found[folder]))
    names = Names.of(paths)
    return Source(data, names.keys(), labels, tuple(map(text, folders)), ReadFile(root, names))


def image_paths(root: bytes) -> Iterator[bytes]:
    """Relative paths of all images, links followed; a link to a folder that it lies in is not."""
    waiting: list[tuple[bytes, frozenset[tuple[int, int]]]] = [(b"", frozenset())]
    while waiting:
        prefix, above = waiting.pop()
        folder = os.path.join(root, prefix.rstrip(b"/")) if prefix else root
        try:
            status = os.stat(folder)
            identity = (status.st_dev, status.st_ino)
            if identity in above:
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith(b"."):
                        continue
                    if is_folder(entry):
                        waiting.append((prefix + entry.name + b"/", above | {identity}))
                    elif entry.name.lower().endswith(BYTE_ENDINGS) and is_file(entry):
                        yield prefix + entry.name
        except OSError as error:
            raise UserError(
                f"the folder '{text(folder)}' cannot be listed ({error.strerror}); make it readable"
            ) from error


def is_folder(entry: os.DirEntry[bytes]) -> bool:
    """Asks the disk about links alone; os.path takes a link to itself for nothing, where the entry would raise."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def is_file(entry: os.DirEntry[bytes]) -> bool:
    """A pipe is no image and would never end; a link to nothing is one that cannot be read, and is listed as such."""
    if entry.is_symlink():
        return os.path.isfile(entry.path) or not os.path.exists(entry.path)
    return entry.is_file()
