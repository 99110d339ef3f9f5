"""Writing a label store: shard by shard, in any order and by many processes, and again where that was interrupted."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from alltokens.errors import UserError
from alltokens.files import sha256, sync_folder, write_atomically
from alltokens.labels.keys import build_index, keys_sha256, pack_keys
from alltokens.labels.meta import (
    INDEX,
    KEYS,
    META,
    UNFINISHED,
    UNREADABLE,
    Meta,
    Plan,
    StoredFile,
    checked_meta,
    differences,
    npy_header,
    npy_size,
    read_config,
    shard_name,
    write_json,
    write_meta,
)
from alltokens.labels.record import Records
from alltokens.plain import to_plain


@dataclass(frozen=True)
class Unreadable:
    """An image of a shard without labels."""

    row: int
    """Counted within the shard."""
    reason: str
    """Why it could not be read."""


@dataclass(frozen=True)
class ShardNote:
    """What lies beside a shard until its store is finished."""

    sha256: str
    """Of the shard."""
    unreadable: tuple[Unreadable, ...]
    """Its images without labels."""


def begin(folder: Path, plan: Plan) -> None:
    """Make the folder a store of this plan, or go on with it; a store of another plan is refused."""
    if (folder / UNFINISHED).exists():
        require_equal(folder, read_config(Plan, folder / UNFINISHED), plan)
    elif (folder / META).exists():
        require_equal(folder, checked_meta(folder).plan, plan)
    else:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"'{folder}' is a file; give a folder for the label store")
        # What a killed begin leaves: the folder of shards, with nothing in it.
        strangers = [path.name for path in folder.glob("*") if path.name != "shards" and not is_remnant(path)]
        if strangers or any((folder / "shards").glob("*")):
            first = min(strangers, default="shards")
            raise UserError(f"'{folder}' holds other files, such as '{first}'; give a new or empty folder")
        make_folder(folder / "shards")
        write_json(folder / UNFINISHED, to_plain(plan))


def require_equal(folder: Path, there: Plan, now: Plan) -> None:
    """Labels of two kinds never end up in one store."""
    # Older stores do not say which rows their numbers count.
    there = replace(there, split=there.split or now.split, labels_sha256=there.labels_sha256 or now.labels_sha256)
    if there != now:
        changes = ", ".join(differences(there, now))
        raise UserError(f"label store '{folder}' was begun otherwise: {changes}; keep to that or give another folder")


def write_shard(folder: Path, number: int, records: Records, unreadable: Mapping[int, str]) -> None:
    """Records of the shard's rows, and why some have no labels; rows are counted within the shard."""
    path = folder / shard_name(number)
    content = npy_bytes(records)
    note_path(path).unlink(missing_ok=True)
    write_atomically(path, lambda file: file.write(content))
    reasons = tuple(Unreadable(row, unreadable[row]) for row in sorted(unreadable))
    write_json(note_path(path), to_plain(ShardNote(hashlib.sha256(content).hexdigest(), reasons)))


def finished_shards(folder: Path, plan: Plan) -> set[int]:
    """Shards that need not be written again."""
    if finished_meta(folder):
        return set(range(plan.shards))
    written = {path.stem for path in (folder / "shards").glob("*.json")}
    paths = {number: folder / shard_name(number) for number in range(plan.shards)}
    return {
        number
        for number, path in paths.items()
        if path.stem in written
        and path.is_file()
        and path.stat().st_size == npy_size(plan.dtype, plan.records_of(number))
    }


def finish(folder: Path, plan: Plan, keys: Sequence[str]) -> None:
    """Make a store of the shards, all of them written; may be killed anywhere and run again."""
    if not (folder / UNFINISHED).exists():
        return
    assert keys_sha256(keys) == plan.keys_sha256, "the keys are not those of the plan"
    if not finished_meta(folder):
        missing = plan.shards - len(finished_shards(folder, plan))
        if missing:
            raise UserError(f"label store '{folder}' lacks {missing} of {plan.shards} shards; write them first")
        write_meta(folder, gather(folder, plan, keys))
    # From here on nothing that is removed is needed again.
    for path in [*folder.glob("shards/*.json"), *filter(is_remnant, folder.rglob("*"))]:
        path.unlink(missing_ok=True)
    sync_folder(folder / "shards")
    (folder / UNFINISHED).unlink()


def gather(folder: Path, plan: Plan, keys: Sequence[str]) -> Meta:
    """Write what is known only at the end, and list every file."""
    notes = [read_config(ShardNote, note_path(folder / shard_name(number))) for number in range(plan.shards)]
    rows = [
        (plan.rows_of(number)[entry.row], entry.reason)
        for number in range(plan.shards)
        for entry in notes[number].unreadable
    ]
    write_atomically(folder / KEYS, lambda file: file.write(pack_keys(keys)))
    index = build_index(keys)
    write_atomically(folder / INDEX, lambda file: file.write(npy_bytes(index)))
    write_json(folder / UNREADABLE, {keys[row]: reason for row, reason in rows})
    sums = {shard_name(number): note.sha256 for number, note in enumerate(notes)}
    sums |= {name: sha256(folder / name) for name in (KEYS, INDEX, UNREADABLE)}
    return Meta(plan=plan, unreadable=len(rows), files=tuple(StoredFile(name, sums[name]) for name in sorted(sums)))


def finished_meta(folder: Path) -> bool:
    """Whether all that a finished store needs has been written, so that shards may have lost their notes."""
    try:
        checked_meta(folder)
    except UserError:
        return False
    return True


def make_folder(folder: Path) -> None:
    """Create a folder, and those it lies in."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder '{folder}': {error.strerror}") from error


def npy_bytes(array: NDArray[Any]) -> bytes:
    """The content of a .npy file."""
    return npy_header(array.dtype, len(array)) + array.tobytes()


def note_path(shard: Path) -> Path:
    """`00000.npy` has its note in `00000.json`."""
    return shard.with_suffix(".json")


def is_remnant(path: Path) -> bool:
    """Whether it is a temporary file of a writer that was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")
