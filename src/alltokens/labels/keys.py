"""The keys of a label store: how they lie in its files, and the row that each one has."""

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alltokens.errors import UserError

INDEX_DTYPE = np.dtype([("hash", "<u8"), ("row", "<u4")])
LONGEST_KEY = 4096
"""Bytes: the longest path of Linux; what would unpack to more than that for each key is no list of keys."""


def key_bytes(keys: Sequence[str]) -> bytes:
    """All keys, a NUL between them; a name that is no valid UTF-8 keeps its bytes."""
    for key in keys:
        if "\0" in key or not key:
            raise UserError(f"a key must be text without NUL characters and not empty; got {key!r}")
    return "\0".join(keys).encode("utf-8", "surrogateescape")


def pack_keys(keys: Sequence[str]) -> bytes:
    """The content of keys.zz."""
    return zlib.compress(key_bytes(keys), 9)


def unpack_keys(packed: bytes, count: int) -> list[str]:
    """The keys in keys.zz; a ValueError where it does not hold `count` of them."""
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(packed, count * (LONGEST_KEY + 1))
    except zlib.error as error:
        raise ValueError(error) from error
    keys = content.decode("utf-8", "surrogateescape").split("\0")
    if not unpacker.eof or unpacker.unused_data or len(keys) != count:
        raise ValueError(f"{len(keys)} keys where {count} are expected")
    return keys


def keys_sha256(keys: Sequence[str]) -> str:
    """Tells one data set from another."""
    return hashlib.sha256(key_bytes(keys)).hexdigest()


def key_hashes(keys: Sequence[str]) -> NDArray[np.uint64]:
    """Eight bytes a key."""
    digests = [hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest() for key in keys]
    return np.frombuffer(b"".join(digests), "<u8")


def build_index(keys: Sequence[str]) -> NDArray[Any]:
    """Hash and row of every key, in the order of the hashes."""
    hashes = key_hashes(keys)
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    equal = np.flatnonzero(hashes[1:] == hashes[:-1])
    if len(equal):
        first, second = (keys[order[place]] for place in (equal[0], equal[0] + 1))
        raise UserError(f"keys {first!r} and {second!r} have one hash, and a label store tells keys by it; rename one")
    index = np.empty(len(keys), INDEX_DTYPE)
    index["hash"], index["row"] = hashes, order
    return index


class Lookup:
    """Rows by key, from the index alone."""

    def __init__(self, index: NDArray[Any]) -> None:
        # Each column for itself, because a binary search would otherwise copy it every time.
        self.hashes = index["hash"].copy()
        self.row_of_place = index["row"].copy()

    def __call__(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """The row of each key, -1 where it is unknown."""
        hashes = key_hashes(keys)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[places] == hashes, self.row_of_place[places].astype(np.int64), -1)
