"""Labels in the released layout to a store and back, against tensors made by the layout's definition."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from alltokens.errors import UserError
from alltokens.labels.align import token_targets
from alltokens.labels.keys import keys_sha256
from alltokens.labels.released import from_released, to_released
from alltokens.labels.score_map import ScoreMap
from alltokens.labels.store import LabelStore, verify

from .stores import BROKEN, CLASSES, KEYS, contents, plan_for, source_of, write_store

NAMES = [f"class{number % 3}/image.{number}" for number in range(7)]


def released(seed: int, classes: int = 7, h: int = 2, w: int = 3) -> Tensor:
    """A tensor [2, 3, h, w] of logits and class ids."""
    dense = 8 + 4 * torch.randn(classes, h, w, generator=torch.Generator().manual_seed(seed))
    return torch.stack(dense.topk(3, 0)).half()


def zero_filled(tensor: Tensor, classes: int = 7) -> Tensor:
    """The probabilities that the released code makes of a cell: zeros for every other class, then softmax."""
    logits, ids = tensor.double()
    return logits.new_zeros(classes, *logits.shape[1:]).scatter_(0, ids.long(), logits).softmax(0)


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    for seed, name in enumerate(NAMES):
        path = tmp_path / "released" / f"{name}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(released(seed), path)
    return tmp_path / "released"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "labels"


def test_probabilities_are_those_of_zero_filling(labels: Path, folder: Path) -> None:
    from_released(labels, folder, CLASSES)
    store = LabelStore(folder)
    assert verify(folder) == []
    for seed, name in enumerate(NAMES):
        score_map, exact = store[name], zero_filled(released(seed))
        assert torch.equal(score_map.classes, released(seed)[1].int())
        probabilities = (score_map.logits - score_map.normalizer).double().exp()
        expected = exact.gather(0, score_map.classes.long())
        assert (probabilities.sqrt() - expected.sqrt()).abs().max() <= 1 / 255 + 1e-4


def test_without_a_source_keys_are_paths_without_pt(labels: Path, folder: Path) -> None:
    from_released(labels, folder, CLASSES)
    assert LabelStore(folder).keys() == sorted(NAMES)


def test_names_that_are_no_utf8_make_the_keys_that_sources_make(labels: Path, folder: Path) -> None:
    os.rename(labels / "class1", os.path.join(os.fsencode(labels), b"caf\xe9"))
    from_released(labels, folder, CLASSES)
    assert r"caf\xe9/" in " ".join(LabelStore(folder).keys())


def test_a_source_gives_what_its_row_numbers_count(labels: Path, folder: Path) -> None:
    rows = replace(source_of(NAMES), split="train", labels_sha256="1" * 64)
    from_released(labels, folder, CLASSES, rows)
    plan = LabelStore(folder).plan
    assert (plan.split, plan.labels_sha256) == ("train", "1" * 64)


def test_a_source_gives_the_keys_and_their_order(labels: Path, folder: Path) -> None:
    keys = [f"{name}.JPEG" for name in reversed(NAMES)]
    from_released(labels, folder, CLASSES, source_of(keys))
    store = LabelStore(folder)
    assert store.keys() == keys
    assert store.plan.keys_sha256 == keys_sha256(keys)
    assert torch.equal(store[f"{NAMES[2]}.JPEG"].classes, released(2)[1].int())


def test_images_without_a_file_are_unreadable(labels: Path, folder: Path) -> None:
    from_released(labels, folder, CLASSES, source_of([f"{NAMES[0]}.png", "class9/new.png"]))
    assert LabelStore(folder).unreadable == {"class9/new.png": "there is no label file for it"}


def test_there_and_back_probabilities_are_within_the_steps(labels: Path, folder: Path, tmp_path: Path) -> None:
    from_released(labels, folder, CLASSES, source_of([f"{name}.JPEG" for name in NAMES]))
    to_released(folder, tmp_path / "back")
    assert contents(tmp_path / "back").keys() == contents(labels).keys()
    for seed, name in enumerate(NAMES):
        back = torch.load(tmp_path / "back" / f"{name}.pt", weights_only=True)
        assert back.dtype == torch.float16
        assert torch.equal(back[1], released(seed)[1])
        variation = (zero_filled(back) - zero_filled(released(seed))).abs().sum(0) / 2
        assert variation.mean() < 0.01


def test_keys_that_have_lost_their_ending_lose_nothing_more(labels: Path, folder: Path, tmp_path: Path) -> None:
    from_released(labels, folder, CLASSES)
    to_released(folder, tmp_path / "back")
    assert contents(tmp_path / "back").keys() == contents(labels).keys()


def test_a_training_target_hardly_changes(labels: Path, folder: Path) -> None:
    from_released(labels, folder, CLASSES)
    logits, ids = released(0).float()
    exact = ScoreMap(ids.long(), logits, logits.logsumexp(0))
    views = torch.eye(2, 3)[None]
    ours, theirs = (
        token_targets([score_map], views, grid=(2, 2), classes=7).dense()
        for score_map in (LabelStore(folder)[NAMES[0]], exact)
    )
    assert (ours - theirs).abs().sum(-1).max() / 2 < 0.02


class Trap:
    """An object whose unpickling leaves a file behind."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.sign}",)


def changed(place: tuple[int, ...], value: float) -> Tensor:
    tensor = released(1).clone()
    tensor[place] = value
    return tensor


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("cut", "the label file is damaged"),
        ("trap", "the label file is damaged"),
        ([1, 2], "the label file holds no floats [2, k, h, w]"),
        (torch.zeros(2, 3, 2), "the label file holds no floats [2, k, h, w]"),
        (torch.zeros(3, 3, 2, 2), "the label file holds no floats [2, k, h, w]"),
        (torch.zeros(2, 3, 2, 2, dtype=torch.int64), "the label file holds no floats [2, k, h, w]"),
        (changed((1, 0, 0, 0), 0.5), "the label file has class ids that are no integers"),
        (changed((1, 0, 0, 0), torch.nan), "the label file has class ids that are no integers"),
        (changed((0, 0, 0, 0), torch.nan), "the label file is damaged: the logits of a score map must be finite"),
        (changed((1, 0, 0, 0), -1), "the label file is damaged: class ids of a score map must be at least 0"),
        (torch.zeros(2, 3, 2, 2), "the label file is damaged: a class may appear once in a cell of a score map"),
        (released(1, h=3, w=3), "the label file has 3 classes on 3 x 3 cells, unlike the first one"),
        (released(1)[:, :2].clone(), "the label file has 2 classes on 2 x 3 cells, unlike the first one"),
    ],
)
def test_a_broken_file_is_an_unreadable_image(labels: Path, folder: Path, content: object, reason: str) -> None:
    name, sign = sorted(NAMES)[1], folder.parent / "sign"
    path = labels / f"{name}.pt"
    if content == "cut":
        path.write_bytes(path.read_bytes()[:200])
    else:
        torch.save(Trap(sign) if content == "trap" else content, path)
    from_released(labels, folder, CLASSES)
    store = LabelStore(folder)
    assert list(store.unreadable) == [name]
    assert store.unreadable[name].startswith(reason)
    assert store.read(sorted(NAMES)).grids.tolist() == [[0, 0] if key == name else [2, 3] for key in sorted(NAMES)]
    assert not sign.exists()


def test_the_first_files_may_be_broken(labels: Path, folder: Path) -> None:
    first = sorted(NAMES)[0]
    (labels / f"{first}.pt").write_bytes(b"")
    from_released(labels, folder, CLASSES)
    assert LabelStore(folder).unreadable == {first: "the label file is damaged"}


def test_another_grid_that_fits_is_kept(labels: Path, folder: Path) -> None:
    name = sorted(NAMES)[3]
    torch.save(released(1, h=1, w=2), labels / f"{name}.pt")
    from_released(labels, folder, CLASSES)
    assert LabelStore(folder)[name].logits.shape == (3, 1, 2)


def test_a_class_without_a_name_is_refused(labels: Path, folder: Path) -> None:
    sentence = r"^'.+\.pt' names class \d+ and there are 4; give the names of all classes$"
    with pytest.raises(UserError, match=sentence):
        from_released(labels, folder, CLASSES[:4])


def test_a_folder_without_labels_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match=re.escape(f"there is no folder '{tmp_path / 'x'}' of released labels")):
        from_released(tmp_path / "x", folder, CLASSES)
    sentence = f"there is no released label file in '{tmp_path}' that can be read; give a folder of <class>/<stem>.pt"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        from_released(tmp_path, folder, CLASSES)


def test_images_that_differ_only_in_their_ending_are_refused(labels: Path, folder: Path) -> None:
    sentence = "keys 'a/x.jpg' and 'a/x.png' share the released file 'a/x.pt'; rename one of the images"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        from_released(labels, folder, CLASSES, source_of(["a/x.jpg", "a/x.png"]))


def test_converting_again_changes_nothing(labels: Path, folder: Path) -> None:
    from_released(labels, folder, CLASSES)
    before = contents(folder)
    from_released(labels, folder, CLASSES)
    assert contents(folder) == before


def test_a_store_of_several_grids_is_written_as_released(tmp_path: Path) -> None:
    store = LabelStore(write_store(tmp_path / "labels"))
    to_released(store.path, tmp_path / "back")
    readable = [key for row, key in enumerate(KEYS) if row not in BROKEN]
    assert sorted(contents(tmp_path / "back")) == sorted(key.replace(".jpg", ".pt") for key in readable)
    for key in readable:
        tensor = torch.load(tmp_path / "back" / key.replace(".jpg", ".pt"), weights_only=True)
        assert torch.equal(tensor[0], store[key].logits.half())
        assert torch.equal(tensor[1].int(), store[key].classes)


def test_more_classes_than_float16_tells_apart_are_refused(tmp_path: Path) -> None:
    classes = tuple(map(str, range(2049)))
    folder = write_store(tmp_path / "labels", plan_for(classes=classes))
    sentence = f"label store '{folder}' has 2,049 classes; released files tell no more than 2,048 apart"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        to_released(folder, tmp_path / "back")


@pytest.mark.parametrize("key", ["../a.jpg", "/a.jpg", "a/../../b.jpg", "."])
def test_keys_that_leave_the_folder_are_refused(tmp_path: Path, key: str) -> None:
    folder = write_store(tmp_path / "labels", keys=[key])
    sentence = f"key '{key}' does not name a file within a folder, as released labels need"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        to_released(folder, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_two_keys_with_one_stem_are_not_written_over_each_other(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "labels", keys=["a/x.jpg", "a/x.png"])
    with pytest.raises(UserError, match=re.escape("keys 'a/x.jpg' and 'a/x.png' share the released file 'a/x.pt'")):
        to_released(folder, tmp_path / "back")


def test_progress_ends_with_everything_done(labels: Path, folder: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    from_released(labels, folder, CLASSES, progress=lambda done, total: steps.append((done, total)))
    to_released(folder, tmp_path / "back", progress=lambda done, total: steps.append((done, total)))
    assert steps == [(1, 1), (7, 7)]
