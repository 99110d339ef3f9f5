"""Reading label stores: the right map for every key, and one sentence for whatever is wrong with a folder."""

import contextlib
import json
import multiprocessing
import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from alltokens.errors import UserError
from alltokens.files import checksum_path, sha256
from alltokens.labels.keys import Lookup, build_index, pack_keys
from alltokens.labels.meta import StoredFile, read_meta, write_json, write_meta
from alltokens.labels.record import decode_records
from alltokens.labels.score_map import ScoreMaps
from alltokens.labels.store import LabelStore, require_match, verify

from .stores import BROKEN, CLASSES, KEYS, contents, map_of, plan_for, shard_of, source_of, write_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_store(tmp_path / "labels")


def expected(row: int) -> ScoreMaps:
    """The map of a row, from its record."""
    plan = plan_for()
    record = shard_of(plan, row // 4)[0][row % 4 : row % 4 + 1]
    return decode_records(record, torch.eye(2, 3))


def test_every_key_has_its_own_map(folder: Path) -> None:
    store = LabelStore(folder)
    assert len(store) == 11
    assert store.keys() == KEYS
    assert store.classes == CLASSES
    for row, key in enumerate(KEYS):
        if row not in BROKEN:
            score_map = store[key]
            assert torch.equal(score_map.logits, expected(row).logits[0])
            assert torch.equal(score_map.classes, map_of(row).classes.int())
            assert torch.equal(score_map.view, torch.eye(2, 3))


def test_a_batch_is_read_in_the_order_asked_for(folder: Path) -> None:
    rows = [7, 0, 10, 3, 3, 8]
    maps = LabelStore(folder).read([KEYS[row] for row in rows])
    assert maps.grids.tolist() == [[1, 6], [2, 3], [0, 0], [2, 2], [2, 2], [2, 2]]
    for place, row in enumerate(rows):
        h, w = maps.grids[place].tolist()
        if row not in BROKEN:
            assert torch.equal(maps.logits[place, :, :h, :w], expected(row).logits[0])
            assert torch.equal(maps.normalizer[place, :h, :w], expected(row).normalizer[0])


def test_the_view_of_the_plan_is_that_of_every_map(tmp_path: Path) -> None:
    view = ((0.5, 0.0, 0.25), (0.0, 0.5, 0.25))
    store = LabelStore(write_store(tmp_path / "labels", plan_for(view=view)))
    assert store.read(KEYS).views.tolist() == [[list(row) for row in view]] * 11
    assert store[KEYS[0]].view.tolist() == [list(row) for row in view]


def test_reading_leaves_the_store_as_it_was(folder: Path) -> None:
    before, store = contents(folder), LabelStore(folder)
    store.read(KEYS).logits.zero_()
    store.shard(0)[:] = 7
    assert contents(folder) == before


def test_membership_is_told_by_key(folder: Path) -> None:
    store = LabelStore(folder)
    assert all(key in store for key in KEYS)
    assert "class0/image 11.jpg" not in store
    assert 3 not in store


def test_an_unknown_key_is_named(folder: Path) -> None:
    sentence = (
        f"label store '{folder}' has no image 'nowhere.jpg' among its 11, whose keys are such as 'class0/image 0.jpg'"
    )
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        LabelStore(folder).read([KEYS[0], "nowhere.jpg"])


def test_no_keys_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="give at least one key to read labels for"):
        LabelStore(folder).read([])


def test_an_unreadable_image_says_why(folder: Path) -> None:
    store = LabelStore(folder)
    assert store.unreadable == {KEYS[row]: BROKEN[row] for row in BROKEN}
    sentence = f"label store '{folder}' has no labels for '{KEYS[4]}': the image is cut off"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        store[KEYS[4]]


def test_an_image_without_labels_and_reason_says_so(folder: Path) -> None:
    (folder / "unreadable.json").write_text("{}")
    sentence = f"label store '{folder}' has no labels for '{KEYS[4]}': no reason is given"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        LabelStore(folder)[KEYS[4]]


def test_rows_are_found_among_many_keys() -> None:
    keys = [f"n{number:08}/{number}.JPEG" for number in range(5000)]
    lookup = Lookup(build_index(keys))
    assert lookup(keys).tolist() == list(range(5000))
    assert lookup([f"{key}x" for key in keys]).max() == -1
    assert Lookup(build_index(["one"]))(["one", "two"]).tolist() == [0, -1]


def test_a_store_is_pickled_as_its_path(folder: Path) -> None:
    store = LabelStore(folder)
    store.read(KEYS)
    assert len(pickle.dumps(store)) < 300
    assert pickle.loads(pickle.dumps(store)).keys() == KEYS


class Rows:
    """A data set of nothing but labels."""

    def __init__(self, store: LabelStore) -> None:
        self.store = store

    def __len__(self) -> int:
        return len(KEYS)

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.store.read([KEYS[row]]).logits.sum()


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_workers_read_the_same_store(folder: Path, start: str) -> None:
    store = LabelStore(folder)
    alone = [float(Rows(store)[row]) for row in range(11)]
    context = multiprocessing.get_context(start)
    loader = DataLoader(Rows(store), batch_size=1, num_workers=2, multiprocessing_context=context)
    assert [float(batch) for batch in loader] == alone


def test_mapped_shards_hold_no_file_open(tmp_path: Path) -> None:
    store = LabelStore(write_store(tmp_path / "labels", plan_for(records_per_shard=1)))
    before = len(os.listdir("/proc/self/fd"))
    store.read(KEYS)
    assert len(store.shards) == 11
    assert len(os.listdir("/proc/self/fd")) == before


def refused(folder: Path, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}"):
        LabelStore(folder).read(KEYS)


def seal(folder: Path) -> None:
    """Make every checksum right again, as someone would who wants damage to go unnoticed."""
    meta = read_meta(folder)
    found = tuple(StoredFile(file.name, sha256(folder / file.name)) for file in meta.files)
    write_meta(folder, replace(meta, files=found))


def seal_meta(folder: Path, change: Callable[[dict], object]) -> None:
    """Change meta.json and make its checksum right again."""
    path = folder / "meta.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    checksum_path(path).write_text(f"{sha256(path)}  meta.json\n")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "labels", f"there is no label store '{tmp_path / 'labels'}'")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, f"'{tmp_path}' is no label store: it has no meta.json")
    assert verify(tmp_path) == [f"'{tmp_path}' is no label store: it has no meta.json"]


def test_a_changed_meta_is_refused(folder: Path) -> None:
    path = folder / "meta.json"
    path.write_text(path.read_text().replace("tiny", "fake"))
    refused(folder, f"'{path}' or 'meta.json.sha256' is damaged: the one is not the checksum of the other")


@pytest.mark.parametrize("change", [lambda line: line[:70], lambda line: line + b" ", lambda line: b"\xff" + line])
def test_a_changed_checksum_is_refused(folder: Path, change: Callable[[bytes], bytes]) -> None:
    path = folder / "meta.json.sha256"
    path.write_bytes(change(path.read_bytes()))
    refused(
        folder, f"'{folder / 'meta.json'}' or 'meta.json.sha256' is damaged: the one is not the checksum of the other"
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda meta: meta["plan"].update(format=2, shape="round"), "the store has format 2, this version reads 1"),
        (lambda meta: meta.update(extra=1), "unknown key 'extra'"),
        (lambda meta: meta["plan"].pop("top_k"), "missing key 'plan.top_k': Plan needs it"),
        (lambda meta: meta["plan"].update(images="11"), "plan.images must be an integer; got '11'"),
        (lambda meta: meta["plan"].update(view=[[1, 0, 10**400], [0, 1, 0]]), "int too large to convert to float"),
        (lambda meta: meta["files"].pop(), "it must list the 6 files of a store of 11 images"),
        (lambda meta: meta["files"][0].update(name="../x"), "it must list the 6 files of a store of 11 images"),
        (lambda meta: meta["files"][0].update(name="/etc/passwd"), "it must list the 6 files of a store of 11 images"),
        (
            lambda meta: meta["plan"].update(images=4_000_000_000, records_per_shard=1),
            "it must list the 4,000,000,003 files of a store of 4,000,000,000 images",
        ),
        (lambda meta: meta.clear(), "missing key 'plan': Meta needs it"),
    ],
)
def test_a_meta_that_no_writer_makes_is_refused(folder: Path, change: Callable[[dict], object], sentence: str) -> None:
    seal_meta(folder, change)
    refused(folder, f"'{folder / 'meta.json'}' cannot be used: {sentence}")


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"plan": 3}', "\xff"])
def test_a_meta_that_is_no_mapping_is_refused(folder: Path, text: str) -> None:
    path = folder / "meta.json"
    path.write_bytes(text.encode("latin-1"))
    checksum_path(path).write_text(f"{sha256(path)}  meta.json\n")
    refused(folder, f"'{path}' cannot be used: ")


@pytest.mark.parametrize("name", ["index.npy", "shards/00001.npy"])
def test_an_array_of_another_size_is_refused(folder: Path, name: str) -> None:
    path = folder / name
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\0")
    refused(folder, f"'{path}' cannot be used: it has {size + 1:,} bytes, not {size:,}")
    path.write_bytes(path.read_bytes()[:-2])
    refused(folder, f"'{path}' cannot be used: it has {size - 1:,} bytes, not {size:,}")


def test_an_array_with_another_header_is_refused(folder: Path) -> None:
    path = folder / "shards/00001.npy"
    path.write_bytes(path.read_bytes().replace(b"roots", b"boots"))
    refused(folder, f"'{path}' cannot be used: it does not begin as an array of 4 records")


@pytest.mark.parametrize("name", ["index.npy", "keys.zz", "unreadable.json", "shards/00001.npy"])
def test_a_missing_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    refused(folder, f"'{folder / name}' cannot be used: it does not exist")
    assert verify(folder) == [f"'{folder / name}' does not exist"]


def test_a_shard_cut_while_the_store_is_open_is_refused(folder: Path) -> None:
    store, path = LabelStore(folder), folder / "shards/00001.npy"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        UserError, match=re.escape(f"'{path}' cannot be used: it has changed since the store was opened")
    ):
        store.read(KEYS)


def test_an_index_that_names_rows_beyond_the_store_is_refused(folder: Path) -> None:
    index = np.load(folder / "index.npy", mmap_mode="r+")
    index["row"][3] = 11
    index.flush()
    refused(folder, f"'{folder / 'index.npy'}' cannot be used: it names row 11 of 11")


@pytest.mark.parametrize(
    ("field", "value"), [("height", 9), ("width", 9), ("lowest", np.nan), ("highest", -np.inf), ("classes", 7)]
)
def test_a_record_that_no_writer_makes_names_its_key(folder: Path, field: str, value: float) -> None:
    shard = np.load(folder / "shards/00001.npy", mmap_mode="r+")
    shard[field][1] = value
    shard.flush()
    seal(folder)
    assert verify(folder) == []
    refused(
        folder,
        f"label store '{folder}' has a damaged record for '{KEYS[5]}'; 'alltokens labels verify' finds what else is",
    )


def test_a_class_named_twice_in_a_cell_is_found_when_one_map_is_asked_for(folder: Path) -> None:
    shard = np.load(folder / "shards/00001.npy", mmap_mode="r+")
    shard["classes"][1, 0] = 2
    shard.flush()
    sentence = (
        f"label store '{folder}' has a damaged record for '{KEYS[5]}'; 'alltokens labels verify' finds what else is (a"
    )
    with pytest.raises(UserError, match=re.escape(sentence)):
        LabelStore(folder)[KEYS[5]]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no zlib", "Error -3"),
        (pack_keys(KEYS)[:-3], "11 keys where 11 are expected"),
        (pack_keys(KEYS[1:]), "10 keys where 11 are expected"),
        (pack_keys(["x" * 10_000_000]), "1 keys where 11 are expected"),
    ],
)
def test_damaged_keys_are_refused(folder: Path, content: bytes, reason: str) -> None:
    (folder / "keys.zz").write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"'{folder / 'keys.zz'}' cannot be used: {reason}")):
        LabelStore(folder).keys()


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}'])
def test_damaged_reasons_are_refused(folder: Path, content: str) -> None:
    (folder / "unreadable.json").write_text(content)
    with pytest.raises(UserError, match=re.escape(f"'{folder / 'unreadable.json'}' cannot be used: ")):
        LabelStore(folder).unreadable  # noqa: B018


def test_a_whole_store_is_verified(folder: Path) -> None:
    steps = []
    assert verify(folder, lambda done, total: steps.append((done, total))) == []
    assert steps == [(done, 6) for done in range(7)]


def test_every_damage_is_named(folder: Path) -> None:
    flip(folder / "shards/00000.npy", -1)
    (folder / "shards/00002.npy").unlink()
    (folder / "shards/00003.npy").touch()
    (folder / "notes.txt").touch()
    assert verify(folder) == [
        f"'{folder / 'shards/00000.npy'}' is damaged: its SHA-256 is not the one in 'meta.json'",
        f"'{folder / 'shards/00002.npy'}' does not exist",
        f"'{folder / 'notes.txt'}' is no file of this store",
        f"'{folder / 'shards/00003.npy'}' is no file of this store",
    ]


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def damage(folder: Path, chance: random.Random) -> set[str]:
    """Harm one or two files, at random; their names."""
    path, other = (folder / name for name in chance.sample(sorted(contents(folder)), 2))
    content = path.read_bytes()
    match chance.choice("flip cut extend delete swap".split()):
        case "flip":
            flip(path, chance.randrange(len(content)))
        case "cut":
            path.write_bytes(content[: chance.randrange(len(content))])
        case "extend":
            path.write_bytes(content + chance.randbytes(chance.choice([1, 100])))
        case "delete":
            path.unlink()
        case "swap":
            path.write_bytes(other.read_bytes())
            other.write_bytes(content)
            return {path.name, other.name}
    return {path.name}


def test_500_random_damages_are_all_found_and_never_a_traceback(folder: Path) -> None:
    chance, whole = random.Random(0), contents(folder)
    for _ in range(500):
        names = damage(folder, chance)
        if contents(folder) != whole:
            found = " ".join(verify(folder))
            assert any(name in found for name in names), (names, found)
        with contextlib.suppress(UserError):
            store = LabelStore(folder)
            store.read(KEYS)
            for key in KEYS:
                with contextlib.suppress(UserError):
                    store[key]
            assert len(store.keys()) == 11
            assert isinstance(store.unreadable, dict)
        now = contents(folder)
        for name in whole:
            if now.get(name) != whole[name]:
                (folder / name).write_bytes(whole[name])


def test_a_store_matches_the_data_it_was_made_of(folder: Path) -> None:
    store = LabelStore(folder)
    require_match(store, source_of())
    require_match(store, source_of(KEYS[3:5], CLASSES[:2]))
    require_match(store, source_of(classes=()))


def test_images_without_a_record_are_counted(folder: Path) -> None:
    keys = [*KEYS, "a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    sentence = (
        f"label store '{folder}' lacks 4 of the 15 images of 'photos', such as 'a.jpg', 'b.jpg', 'c.jpg'; "
        "annotate this data set"
    )
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        require_match(LabelStore(folder), source_of(keys))


def test_classes_that_the_store_does_not_name_are_counted(folder: Path) -> None:
    sentence = (
        f"label store '{folder}' does not name 1 of the 2 classes of 'photos', such as 'cat'; annotate with a class map"
    )
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        require_match(LabelStore(folder), source_of(classes=["class0", "cat"]))


@pytest.mark.parametrize(
    ("name", "there", "now"), [("decoder", "torchcodec", "pillow"), ("exif", "ignored", "applied")]
)
def test_another_way_to_decode_is_refused(tmp_path: Path, name: str, there: str, now: str) -> None:
    folder = write_store(tmp_path / "labels", plan_for(**{name: there}))
    sentence = f"label store '{folder}' was made with {name} '{there}', and this is '{now}'; annotate again"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        require_match(LabelStore(folder), source_of())


def test_an_unknown_way_to_decode_is_let_pass(tmp_path: Path) -> None:
    require_match(LabelStore(write_store(tmp_path / "labels", plan_for(decoder="", exif=""))), source_of())


def test_another_split_is_refused(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "labels", plan_for(split="train"))
    require_match(LabelStore(folder), replace(source_of(), split="train"))
    sentence = (
        f"label store '{folder}' was made of split 'train', and this is split 'test' of 'photos'; annotate this one"
    )
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        require_match(LabelStore(folder), replace(source_of(), split="test"))


def test_rows_with_other_classes_are_refused(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "labels", plan_for(labels_sha256="1" * 64))
    require_match(LabelStore(folder), replace(source_of(), labels_sha256="1" * 64))
    sentence = (
        f"label store '{folder}' was made of rows with other classes, or in another order, than those of 'photos', "
        "whose images are known by row number alone; annotate this data set"
    )
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        require_match(LabelStore(folder), replace(source_of(), labels_sha256="2" * 64))


def test_rows_that_are_not_known_are_let_pass(tmp_path: Path, folder: Path) -> None:
    rows = {"split": "train", "labels_sha256": "1" * 64}
    require_match(LabelStore(folder), replace(source_of(), **rows))
    require_match(LabelStore(write_store(tmp_path / "of rows", plan_for(**rows))), source_of())


def test_an_older_store_says_nothing_of_its_rows(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_bytes())
    del meta["plan"]["split"], meta["plan"]["labels_sha256"]
    write_json(folder / "meta.json", meta, checksum=True)
    plan = LabelStore(folder).plan
    assert (plan.split, plan.labels_sha256) == ("", "")


PAGE = Path(__file__).parents[2] / "docs" / "label-store.md"


def test_the_page_reads_a_store_with_numpy_alone(folder: Path) -> None:
    snippet = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    assert len(snippet.strip().splitlines()) <= 15
    assert "alltokens" not in snippet
    assert "torch" not in snippet
    script = (
        f"{snippet}\nimport sys\nassert 'torch' not in sys.modules\nnumpy.savez(sys.argv[1], ids, logits, normalizer)"
    )
    output = folder.parent / "out.npz"
    settings = f"folder, key = {str(folder)!r}, {KEYS[6]!r}\n"
    script = re.sub(r"^folder, key = .*\n", lambda _: settings, script, flags=re.MULTILINE)
    subprocess.run([sys.executable, "-c", script, str(output)], check=True)
    score_map = LabelStore(folder)[KEYS[6]]
    with np.load(output) as arrays:
        ids, logits, normalizer = (torch.from_numpy(arrays[f"arr_{place}"]) for place in range(3))
    assert torch.equal(ids.int().movedim(2, 0), score_map.classes)
    torch.testing.assert_close(logits.float().movedim(2, 0), score_map.logits)
    torch.testing.assert_close(normalizer.float(), score_map.normalizer)
