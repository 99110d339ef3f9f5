"""What a user can do to a run, as typed: the sentence, the exit status, and that nothing is lost by it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from alltokens.cli.main import main
from alltokens.plain import to_plain
from alltokens.train.journal import read_reports

from ..annotate.toys import files_of, photo_folder
from .test_trainer import assert_same
from .toy_runs import toy_config, toy_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("data"))


def write_config(data: Path, folder: Path, **changes) -> Path:
    """A config as a user has it."""
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump(to_plain(toy_config(data, **changes))))
    return path


def train(config: Path, run: Path, *flags: str) -> int:
    return main(["train", str(config), "--run", str(run), "--workers", "0", *flags])


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that did nothing."""
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("error: ").rstrip("\n")


def test_a_store_that_is_not_there(data: Path, tmp_path: Path, capsys):
    config = write_config(data, tmp_path)
    assert train(config, tmp_path / "run", "--data.labels", str(tmp_path / "none")) == 2
    assert refused(capsys) == f"there is no label store '{tmp_path / 'none'}'"
    assert not (tmp_path / "run").exists()


def test_a_store_of_other_images(data: Path, tmp_path: Path, capsys):
    other = photo_folder(tmp_path / "other", 30)
    assert train(write_config(data, tmp_path), tmp_path / "run", "--data.root", str(other)) == 2
    assert refused(capsys) == (
        f"label store '{data / 'labels'}' lacks 6 of the 30 images of '{other}', "
        "such as 'cat/024.png', 'cat/026.png', 'cat/028.png'; annotate this data set"
    )
    assert not (tmp_path / "run").exists()


def test_an_empty_folder(data: Path, tmp_path: Path, capsys):
    empty = tmp_path / "empty"
    (empty / "cat").mkdir(parents=True)
    assert train(write_config(data, tmp_path), tmp_path / "run", "--data.root", str(empty)) == 2
    assert refused(capsys).startswith(f"there is no image in '{empty}'; files that end in .bmp, ")
    assert not (tmp_path / "run").exists()


def test_one_class_alone(data: Path, tmp_path: Path, capsys):
    one = shutil.copytree(data / "photos" / "cat", tmp_path / "one" / "cat").parent
    assert train(write_config(data, tmp_path), tmp_path / "run", "--data.root", str(one)) == 2
    assert refused(capsys) == f"'{one}' has 1 classes; training needs two at least"
    assert not (tmp_path / "run").exists()


def test_a_wrong_key_in_yaml(data: Path, tmp_path: Path, capsys):
    config = write_config(data, tmp_path)
    config.write_text(config.read_text().replace("weight_decay:", "weight_decya:"))
    assert train(config, tmp_path / "run") == 2
    assert refused(capsys) == "unknown key 'optimizer.weight_decya'; did you mean weight_decay, layer_decay?"
    assert not (tmp_path / "run").exists()


def test_both_ways_to_hold_images_out(data: Path, tmp_path: Path, capsys):
    config = write_config(data, tmp_path)
    assert train(config, tmp_path / "run", "--data.held-out", "0.2") == 2
    assert refused(capsys) == (
        "validation images are held out of the training images or lie elsewhere; "
        f"got data.held_out=0.2 and data.validation={data / 'photos'}, leave out one"
    )
    assert train(config, tmp_path / "run", "--data.held-out", "1.5", "--data.validation", "None") == 2
    assert refused(capsys) == "data.held_out must be between 0 and 1; got data.held_out=1.5"


def test_first_weights_that_are_not_there_or_of_another_model(data: Path, tmp_path: Path, capsys):
    config = write_config(data, tmp_path)
    assert train(config, tmp_path / "run", "--initial", str(tmp_path / "none.pth")) == 2
    assert capsys.readouterr().err.endswith(f"error: there is no weight file '{tmp_path / 'none.pth'}'\n")
    assert train(config, tmp_path / "done") == 0
    weights = tmp_path / "done" / "best" / "model.safetensors"
    capsys.readouterr()
    assert train(config, tmp_path / "deeper", "--initial", str(weights), "--model.depth", "3") == 2
    assert f"error: '{weights}' does not fit the model: its depth is 2 and not 3" in capsys.readouterr().err


def test_a_run_of_another_config_is_left_as_it_is(data: Path, tmp_path: Path, capsys):
    config = write_config(data, tmp_path)
    assert train(config, tmp_path / "run") == 0
    before = files_of(tmp_path / "run")
    capsys.readouterr()
    assert train(config, tmp_path / "run", "--seed", "7") == 2
    assert refused(capsys) == (
        f"'{tmp_path / 'run'}' is a run of another config: seed is 0 there and 7 now; keep to it or give another folder"
    )
    assert files_of(tmp_path / "run") == before


def test_a_learning_rate_that_is_too_high_ends_the_process_with_1_and_nothing_of_it_is_kept(data: Path, tmp_path: Path):
    command = [str(Path(sys.executable).with_name("alltokens")), "train", str(write_config(data, tmp_path))]
    flags = ["--run", str(tmp_path / "run"), "--workers", "0", "--optimizer.learning-rate", "1e30"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *flags], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: training diverged in step ")
    assert done.stderr.endswith("; lower learning_rate, lengthen the warm-up or set clip\n")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run" / "last").exists()
    assert not (tmp_path / "run" / "best").exists()


@pytest.mark.filterwarnings("default:the image")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_image_that_cannot_be_read_is_named_once_and_the_run_goes_on(tmp_path: Path, workers: str, capsys):
    data = toy_data(tmp_path)
    broken = data / "photos" / "dog" / "007.png"
    broken.write_bytes(broken.read_bytes()[:200])
    assert train(write_config(data, tmp_path), tmp_path / "run", "--workers", workers) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert told == ["warning: the image 'dog/007.png' cannot be read and is left out; repair or remove it"]
    assert len(read_reports(tmp_path / "run" / "metrics.jsonl")) == 2


def test_images_that_all_cannot_be_read_are_one_sentence(tmp_path: Path, capsys):
    data = toy_data(tmp_path)
    for path in (data / "photos").rglob("*.png"):
        path.write_bytes(b"")
    assert train(write_config(data, tmp_path), tmp_path / "run", "--workers", "2") == 2
    sentence = capsys.readouterr().err.removeprefix("error: ")
    assert sentence.startswith(f"24 images of '{data / 'photos'}' in a row cannot be read, such as '")
    assert sentence.endswith(".png' (the image is empty); see that they are there\n")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_run_that_fills_the_disk_goes_on_as_if_it_had_not_when_there_is_space(
    data: Path, tmp_path: Path, small_disk: Path, capsys
):
    config = write_config(data, tmp_path)
    assert train(config, tmp_path / "whole") == 0
    blocked, statuses = small_disk / "other", []
    for free in (0, 20_000, 60_000, 150_000, 300_000):
        # Whatever is written next fails: the folder's own files, the metrics, the report, or a part of a checkpoint.
        blocked.unlink(missing_ok=True)
        left = os.statvfs(small_disk)
        blocked.write_bytes(bytes(max(0, left.f_bavail * left.f_frsize - free)))
        capsys.readouterr()
        statuses.append(train(config, small_disk / "run"))
        if statuses[-1]:
            last = capsys.readouterr().err.splitlines()[-1]
            assert last.startswith("error: cannot ")
            assert "the disk is full; free some space and run again" in last or "No space left on device" in last
    assert 2 in statuses[1:]
    blocked.unlink()
    assert train(config, small_disk / "run") == 0
    assert_same(tmp_path / "whole", small_disk / "run")
