"""Writing label stores: what lies in the folder, in any order, after any kill."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from alltokens.errors import UserError
from alltokens.files import sha256
from alltokens.labels.keys import build_index, keys_sha256, pack_keys, unpack_keys
from alltokens.labels.meta import Plan, read_meta
from alltokens.labels.shards import begin, finish, finished_shards, write_shard
from alltokens.labels.store import LabelStore, verify

from .stores import BROKEN, CLASSES, KEYS, contents, plan_for, shard_of, write_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "labels"


def test_a_finished_store_has_these_files_and_no_others(folder: Path) -> None:
    write_store(folder)
    shards = [f"shards/0000{number}.npy" for number in range(3)]
    others = ["index.npy", "keys.zz", "meta.json", "meta.json.sha256", "unreadable.json"]
    assert sorted(contents(folder)) == sorted([*others, *shards])


def test_meta_lists_the_checksum_of_every_other_file(folder: Path) -> None:
    meta = read_meta(write_store(folder))
    found = {name for name in contents(folder) if not name.startswith("meta.json")}
    assert meta.sums == {name: sha256(folder / name) for name in found}
    assert meta.plan == plan_for()
    assert meta.unreadable == 2


def test_numpy_alone_reads_shards_and_index(folder: Path) -> None:
    write_store(folder)
    shard = np.load(folder / "shards/00001.npy", mmap_mode="r", allow_pickle=False)
    assert shard.dtype == plan_for().dtype
    assert shard.tobytes() == shard_of(plan_for(), 1)[0].tobytes()
    index = np.load(folder / "index.npy", allow_pickle=False)
    assert index.dtype.itemsize == 12
    assert sorted(index["row"]) == list(range(11))
    assert (np.diff(index["hash"].astype(object)) > 0).all()


def test_an_array_begins_as_numpy_begins_it_but_for_padding(folder: Path) -> None:
    write_store(folder)
    for name in ("shards/00002.npy", "index.npy"):
        content = (folder / name).read_bytes()
        assert content[:8] == b"\x93NUMPY\x01\x00"
        length = int.from_bytes(content[8:10], "little")
        assert (10 + length) % 64 == 0
        assert content[9 + length : 10 + length] == b"\n"


def test_unreadable_images_are_listed_with_their_reasons(folder: Path) -> None:
    write_store(folder)
    assert json.loads((folder / "unreadable.json").read_text()) == {KEYS[row]: BROKEN[row] for row in BROKEN}


def test_shards_in_any_order_make_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    plan, other = plan_for(), write_store(tmp_path / "other")
    begin(folder, plan)
    for number in (2, 0, 1):
        write_shard(folder, number, *shard_of(plan, number))
    finish(folder, plan, KEYS)
    assert contents(folder) == contents(other)


def test_a_begun_store_continues_with_what_is_missing(folder: Path) -> None:
    plan = plan_for()
    begin(folder, plan)
    assert finished_shards(folder, plan) == set()
    write_shard(folder, 1, *shard_of(plan, 1))
    begin(folder, plan)
    assert finished_shards(folder, plan) == {1}


def test_a_shard_without_its_note_is_unfinished(folder: Path) -> None:
    plan = plan_for()
    begin(folder, plan)
    write_shard(folder, 1, *shard_of(plan, 1))
    (folder / "shards/00001.json").unlink()
    assert finished_shards(folder, plan) == set()


def test_a_shard_that_is_gone_or_cut_is_written_again(folder: Path) -> None:
    plan = plan_for()
    begin(folder, plan)
    for number in range(3):
        write_shard(folder, number, *shard_of(plan, number))
    (folder / "shards/00000.npy").unlink()
    os.truncate(folder / "shards/00001.npy", 300)
    assert finished_shards(folder, plan) == {2}


@pytest.mark.parametrize("finished", [False, True])
def test_an_older_store_that_does_not_know_its_rows_goes_on(folder: Path, finished: bool) -> None:
    begin(folder, plan_for())
    if finished:
        write_store(folder)
    plan = plan_for(split="train", labels_sha256="1" * 64)
    write_store(folder, plan)
    assert read_meta(folder).plan == (plan_for() if finished else plan)
    with pytest.raises(UserError, match=r"was begun otherwise: split is 'train' there and 'test' now; keep to"):
        begin(write_store(folder.with_name("of train"), plan), replace(plan, split="test"))


def test_a_finished_store_of_the_same_plan_is_left_alone(folder: Path) -> None:
    before = contents(write_store(folder))
    begin(folder, plan_for())
    assert finished_shards(folder, plan_for()) == {0, 1, 2}
    finish(folder, plan_for(), KEYS)
    assert contents(folder) == before


@pytest.mark.parametrize("finished", [True, False])
def test_another_plan_is_refused_with_every_difference(folder: Path, finished: bool) -> None:
    write_store(folder) if finished else begin(folder, plan_for())
    now = replace(plan_for(), top_k=2, fit="square", classes=CLASSES[:6])
    sentence = (
        f"label store '{folder}' was begun otherwise: classes is {CLASSES!r} there and {CLASSES[:6]!r} now, "
        "top_k is 3 there and 2 now, fit is 'rectangle' there and 'square' now; keep to that or give another folder"
    )
    with pytest.raises(UserError) as caught:
        begin(folder, now)
    assert str(caught.value) == sentence


def test_long_differences_are_shortened(folder: Path) -> None:
    many = plan_for(classes=tuple(f"class{number}" for number in range(1000)))
    begin(folder, many)
    sentence = (
        "classes is ('class0', 'class1', 'class2', 'class3', 'class4', 'class5',... (1000 in all) there and ('class0'"
    )
    with pytest.raises(UserError, match=re.escape(sentence)):
        begin(folder, plan_for())


def test_a_folder_with_other_files_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "photo.jpg").touch()
    sentence = f"'{folder}' holds other files, such as 'photo.jpg'; give a new or empty folder"
    with pytest.raises(UserError, match=re.escape(sentence)):
        begin(folder, plan_for())


def test_a_file_in_place_of_the_folder_is_refused(folder: Path) -> None:
    folder.touch()
    with pytest.raises(UserError, match=re.escape(f"'{folder}' is a file; give a folder for the label store")):
        begin(folder, plan_for())


def test_a_folder_that_cannot_be_created_is_refused(folder: Path) -> None:
    folder.touch()
    sentence = f"cannot create the folder '{folder / 'labels' / 'shards'}': Not a directory"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        begin(folder / "labels", plan_for())


def test_a_damaged_plan_is_refused(folder: Path) -> None:
    begin(folder, plan_for())
    (folder / "unfinished.json").write_text("{")
    with pytest.raises(UserError, match=re.escape(f"'{folder / 'unfinished.json'}' cannot be used: ")):
        begin(folder, plan_for())


def test_a_store_that_lacks_shards_cannot_be_finished(folder: Path) -> None:
    plan = plan_for()
    begin(folder, plan)
    write_shard(folder, 1, *shard_of(plan, 1))
    with pytest.raises(UserError, match=re.escape(f"label store '{folder}' lacks 2 of 3 shards; write them first")):
        finish(folder, plan, KEYS)


def test_keys_of_another_data_set_are_a_bug(folder: Path) -> None:
    begin(folder, plan_for())
    with pytest.raises(AssertionError, match="not those of the plan"):
        finish(folder, plan_for(), KEYS[::-1])


def test_an_unfinished_store_cannot_be_opened(folder: Path) -> None:
    begin(folder, plan_for())
    sentence = f"label store '{folder}' is unfinished; run the same command again to finish it"
    with pytest.raises(UserError, match=re.escape(sentence)):
        LabelStore(folder)
    assert verify(folder) == [sentence]


def test_remnants_of_killed_writers_are_removed(folder: Path, tmp_path: Path) -> None:
    begin(folder, plan_for())
    for name in (".keys.zz.0123abcd.part", "shards/.00001.npy.0123abcd.part"):
        (folder / name).write_bytes(b"half")
    assert contents(write_store(folder)) == contents(write_store(tmp_path / "other"))


KILLED_AT_A_STEP = """
import os, signal, sys
from pathlib import Path
from tests.labels.stores import write_store

steps = int(sys.argv[2])

def audit(event, arguments):
    global steps
    if event in ("os.rename", "os.remove", "os.mkdir", "open") and sys.argv[1] in str(arguments[0]):
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(audit)
write_store(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_writer_killed_before_any_step_is_continued_to_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """Before every fifth file that is opened, renamed or removed, from the first folder to the last mark."""
    whole = contents(write_store(tmp_path / "other"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    kills = 0
    for step in range(0, 200, 5):
        target = tmp_path / f"labels{step}"
        command = [sys.executable, "-c", KILLED_AT_A_STEP, str(target), str(step)]
        status = subprocess.run(command, env=environment, check=False).returncode
        assert status in (0, -signal.SIGKILL)
        kills += status != 0
        if status:
            assert not target.exists() or verify(target) or contents(target) == whole
        assert contents(write_store(target)) == whole
        if status == 0:
            break
    assert kills > 8


class Stopped(Exception):
    """In place of a kill, in the test's own process."""


def test_finishing_may_stop_at_any_file_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, plan = contents(write_store(tmp_path / "other")), plan_for()
    stops = 0
    for step in range(100):
        target = tmp_path / f"labels{step}"
        begin(target, plan)
        for number in range(plan.shards):
            write_shard(target, number, *shard_of(plan, number))
        left = step

        def counted(original):
            def change(*arguments, **options):
                nonlocal left
                left -= 1
                if left < 0:
                    raise Stopped
                return original(*arguments, **options)

            return change

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", counted(os.replace))
            patch.setattr(Path, "unlink", counted(Path.unlink))
            try:
                finish(target, plan, KEYS)
            except Stopped:
                stops += 1
            else:
                break
        assert (target / "unfinished.json").exists()
        begin(target, plan)
        assert finished_shards(target, plan) == {0, 1, 2}
        finish(target, plan, KEYS)
        assert contents(target) == whole
    assert stops > 10


ODD_KEYS = ["a.jpg", "ü/é 1.png", "raw\udcff.jpg", "12", "x" * 4000]


def test_odd_keys_come_back(folder: Path) -> None:
    assert unpack_keys(pack_keys(ODD_KEYS), 5) == ODD_KEYS
    store = LabelStore(write_store(folder, keys=ODD_KEYS))
    assert store.keys() == ODD_KEYS
    assert store.unreadable == {ODD_KEYS[4]: BROKEN[4]}
    assert all(key in store for key in ODD_KEYS)


@pytest.mark.parametrize("key", ["a\0b", ""])
def test_keys_that_cannot_be_listed_are_refused(key: str) -> None:
    sentence = f"a key must be text without NUL characters and not empty; got {key!r}"
    with pytest.raises(UserError, match=re.escape(sentence)):
        keys_sha256(["a", key])


def test_two_keys_with_one_hash_are_refused() -> None:
    sentence = "keys 'a' and 'a' have one hash, and a label store tells keys by it; rename one"
    with pytest.raises(UserError, match=re.escape(sentence)):
        build_index(["a", "b", "a"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"top_k": 0}, "top_k must be between 1 and 7; got 0"),
        ({"top_k": 8}, "top_k must be between 1 and 7; got 8"),
        ({"cells": 65_537}, "cells must be between 1 and 65,536; got 65537"),
        ({"images": 0}, "images must be between 1 and 4,294,967,295; got 0"),
        ({"records_per_shard": 0}, "records_per_shard must be between 1 and 4,294,967,295; got 0"),
        ({"format": 2}, "the store has format 2, this version reads 1"),
        ({"view": ((1.0, 0.0, 0.0), (1.0, 0.0, 0.0))}, "the view must be finite and invertible; got ((1.0, 0.0, 0.0)"),
        ({"view": ((1.0, 0.0, 0.0), (0.0, float("nan"), 0.0))}, "the view must be finite and invertible; got "),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        plan_for(**changes)


def test_shards_cover_every_row_once() -> None:
    for images, each in ((11, 4), (8, 4), (1, 4), (5, 1)):
        plan: Plan = plan_for(images=images, records_per_shard=each)
        rows = [row for number in range(plan.shards) for row in plan.rows_of(number)]
        assert rows == list(range(images))
