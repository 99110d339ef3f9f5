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
from alltokens.processes import Processes
from alltokens.train.journal import read_reports

from ..annotate.toys import files_of, photo_folder
from .test_trainer import assert_same
from .toy_runs import plain_labels, toy_config, toy_data, toy_labels


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("data"))


def write_config(data: Path, folder: Path, **changes) -> Path:
    """A config as a user has it."""
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump(to_plain(toy_config(data, **changes))))
    return path


def train(config: Path, run: Path, *flags: str) -> int:
    return main(["train", str(config), "--folder", str(run), "--workers", "0", *flags])


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


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (["--batch", "3"], "batch must be a multiple of 2, two images for each of 1 processes; got batch=3"),
        (["--batch", "64"], "there are 24 images, fewer than a batch of 64; make the batch smaller"),
        (
            ["--schedule.final-rate", "0.5"],
            "final_rate must not be above the learning rate of this batch size, 0.01; got final_rate=0.5",
        ),
        (["--initial", "none.pth"], "there is no weight file 'none.pth'"),
        (["--seed", str(2**70)], f"seed must be at least 0 and below 2^63; got seed={2**70}"),
    ],
)
def test_a_config_that_is_refused_leaves_the_folder_to_the_next(
    data: Path, tmp_path: Path, capsys, mistake: list[str], sentence: str
):
    config = write_config(data, tmp_path)
    assert train(config, tmp_path / "run", *mistake) == 2
    assert refused(capsys) == sentence
    assert not (tmp_path / "run").exists()
    assert train(config, tmp_path / "run") == 0


def test_a_run_goes_on_with_its_own_images_alone(tmp_path: Path, capsys):
    data = toy_data(tmp_path)
    config, more = write_config(data, tmp_path), data / "photos" / "cat" / "more.png"
    assert train(config, tmp_path / "run") == 0
    before = files_of(tmp_path / "run")
    capsys.readouterr()
    shutil.copy(data / "photos" / "cat" / "000.png", more)
    shutil.rmtree(data / "labels")
    toy_labels(data)
    assert train(config, tmp_path / "run") == 2
    others = f"'{tmp_path / 'run'}' is a run of other images"
    assert refused(capsys) == f"{others}, 24 there and 25 now; put them back or give another folder"
    more.rename(more.with_name("moved.png"))
    (data / "photos" / "cat" / "000.png").unlink()
    shutil.rmtree(data / "labels")
    toy_labels(data)
    assert train(config, tmp_path / "run") == 2
    assert refused(capsys) == f"{others}, as many, but not the same; put them back or give another folder"
    assert files_of(tmp_path / "run") == before


def test_a_run_goes_on_with_its_own_classes_alone(tmp_path: Path, capsys):
    data = toy_data(tmp_path)
    plain = plain_labels(toy_config(data))
    config = tmp_path / "plain.yaml"
    config.write_text(yaml.safe_dump(to_plain(plain)))
    assert train(config, tmp_path / "run") == 0
    capsys.readouterr()
    (data / "photos" / "cat").rename(data / "photos" / "lion")
    assert train(config, tmp_path / "run") == 2
    assert refused(capsys) == (
        f"'{tmp_path / 'run'}' is a run of other classes: 'cat' there is 'dog' now; name them as they were or give "
        "another folder"
    )


def test_two_runs_in_one_folder(data: Path, tmp_path: Path, capsys):
    with Processes(0, 1).alone_in(tmp_path / "run"):
        program = f"from alltokens.cli.main import main; raise SystemExit(main({arguments_of(data, tmp_path)!r}))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: another run is writing to '{tmp_path / 'run'}'; wait for it, or give another folder\n"
    )
    assert main(arguments_of(data, tmp_path)) == 0
    assert not list((tmp_path / "run").glob(".*"))


def arguments_of(data: Path, folder: Path) -> list[str]:
    return ["train", str(write_config(data, folder)), "--folder", str(folder / "run"), "--workers", "0"]


def test_what_a_kill_left_of_the_first_file_is_no_hindrance(data: Path, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".environment.json.0123abcd.part").write_text("{")
    assert train(write_config(data, tmp_path), tmp_path / "run") == 0


def test_a_file_where_a_folder_should_be(data: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = write_config(data, tmp_path)
    (tmp_path / "runs").write_text("")
    assert main(["train", str(config), "--workers", "0"]) == 2
    assert refused(capsys) == "cannot make the folder 'runs': File exists; give --folder"
    assert train(config, tmp_path / "runs") == 2
    sentence = f"cannot write to '{tmp_path / 'runs'}': File exists; give a folder in an existing one"
    assert refused(capsys) == sentence


def test_a_date_that_is_none(data: Path, tmp_path: Path, capsys):
    config = write_config(data, tmp_path)
    config.write_text("data: {root: 2024-02-30}\n")
    assert train(config, tmp_path / "run") == 2
    assert refused(capsys) == f"'{config}' cannot be read as YAML (day is out of range for month)"


def test_a_learning_rate_that_is_too_high_ends_the_process_with_1_and_nothing_of_it_is_kept(data: Path, tmp_path: Path):
    command = [str(Path(sys.executable).with_name("alltokens")), "train", str(write_config(data, tmp_path))]
    flags = ["--folder", str(tmp_path / "run"), "--workers", "0", "--optimizer.learning-rate", "1e30"]
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
