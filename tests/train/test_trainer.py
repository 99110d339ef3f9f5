"""Runs from their config to their folder: what they write, going on after a stop, and many processes as one."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from alltokens.errors import UserError
from alltokens.models.factory import open_model
from alltokens.plain import to_plain
from alltokens.train.journal import read_reports
from alltokens.train.run_folder import read_config
from alltokens.train.stopping import Stopped
from alltokens.train.trainer import train

from .toy_runs import MACHINE, plain_labels, toy_config, toy_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("data"))


TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]


def silent(done: int, total: int) -> None:
    """No progress."""


def weights(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of a run's last checkpoint, its averaged weights among them."""
    averaged = {f"average {name}": tensor for name, tensor in load_file(run / "last" / "model.safetensors").items()}
    return averaged | load_file(run / "last" / "training.safetensors")


def metrics(run: Path) -> list[dict]:
    """What was reported, apart from times."""
    return [
        {name: x for name, x in line.items() if "seconds" not in name} for line in read_reports(run / "metrics.jsonl")
    ]


def assert_same(one: Path, other: Path) -> None:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    assert all(mine[name].equal(theirs[name]) for name in mine)
    assert metrics(one) == metrics(other)


@pytest.mark.parametrize("kind", ["token labels", "plain labels"])
def test_a_run_writes_its_config_metrics_and_checkpoints(data: Path, tmp_path: Path, kind: str):
    config = toy_config(data) if kind == "token labels" else plain_labels(toy_config(data))
    told = []
    train(config, tmp_path / "run", MACHINE, lambda done, total: told.append((done, total)))
    assert told == [(step, 6) for step in range(7)]
    assert read_config(tmp_path / "run" / "config.yaml") == config
    reports = metrics(tmp_path / "run")
    assert [line["epoch"] for line in reports] == [0, 1]
    assert {"step", "rate", "train_loss", "train_image", "top1", "top5", "loss"} <= reports[0].keys()
    assert ("train_token" in reports[0]) == (kind == "token labels")
    for name in ("last", "best"):
        model = open_model(tmp_path / "run" / name / "model.safetensors").eval()
        assert model(torch.zeros(1, 3, 32, 32)).image_logits.shape == (1, config.model.classes)


def stop_at(step: int) -> Callable[[int, int], None]:
    """Sends the process itself the signal to stop when a step is done."""

    def report(done: int, total: int) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return report


def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(data: Path, tmp_path: Path):
    config = toy_config(data)
    train(config, tmp_path / "whole", MACHINE, silent)
    for step, workers in [(1, 0), (3, 2), (5, 1)]:
        with pytest.raises(Stopped) as stopped:
            train(config, tmp_path / "run", replace(MACHINE, workers=workers), stop_at(step))
        assert stopped.value.status == 143
    train(config, tmp_path / "run", MACHINE, silent)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_a_finished_run_has_nothing_left_to_do(data: Path, tmp_path: Path):
    config = toy_config(data)
    train(config, tmp_path / "run", MACHINE, silent)
    before = weights(tmp_path / "run")
    told = []
    train(config, tmp_path / "run", MACHINE, lambda done, total: told.append((done, total)))
    assert told == [(6, 6)]
    assert all(before[name].equal(tensor) for name, tensor in weights(tmp_path / "run").items())
    assert len(metrics(tmp_path / "run")) == 2


def test_a_run_of_another_config_is_refused_with_what_differs(data: Path, tmp_path: Path):
    config = toy_config(data)
    train(config, tmp_path / "run", MACHINE, silent)
    other = replace(config, batch=4, optimizer=replace(config.optimizer, weight_decay=0.1))
    with pytest.raises(UserError) as error:
        train(other, tmp_path / "run", MACHINE, silent)
    assert str(error.value) == (
        f"'{tmp_path / 'run'}' is a run of another config: optimizer.weight_decay is 0.05 there and 0.1 now, "
        "batch is 8 there and 4 now; keep to it or give another folder"
    )


def test_a_run_that_diverges_ends_with_the_step_and_is_not_saved(data: Path, tmp_path: Path):
    config = toy_config(data)
    config = replace(config, optimizer=replace(config.optimizer, learning_rate=1e30))
    with pytest.raises(UserError, match=r"^training diverged in step \d: .* is (nan|inf)"):
        train(config, tmp_path / "run", MACHINE, silent)
    assert not (tmp_path / "run" / "last").exists()


def test_drop_path_does_not_depend_on_where_a_run_was_stopped(data: Path, tmp_path: Path):
    config = toy_config(data)
    config = replace(config, model=replace(config.model, drop_path=0.5))
    train(config, tmp_path / "whole", MACHINE, silent)
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", MACHINE, stop_at(2))
    torch.rand(100)
    train(config, tmp_path / "run", MACHINE, silent)
    assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"accumulate": 0}, "accumulate must be at least 1; got accumulate=0"),
        ({"accumulate": 3}, "batch must be divisible by accumulate; got batch=8, accumulate=3"),
        ({"batch": 26}, "there are 24 images, fewer than a batch of 26; make the batch smaller"),
    ],
)
def test_mistakes_are_one_sentence(data: Path, tmp_path: Path, changes: dict, sentence: str):
    with pytest.raises(UserError) as error:
        train(toy_config(data, **changes), tmp_path / "run", MACHINE, silent)
    assert str(error.value) == sentence


def test_sizes_labels_and_classes_must_fit_together(data: Path, tmp_path: Path):
    config = toy_config(data)
    with pytest.raises(UserError) as error:
        replace(config, augment=replace(config.augment, size=(48, 48)))
    assert str(error.value) == "augment.size must be the model's image_size; got (48, 48) and (32, 32)"
    with pytest.raises(UserError) as error:
        replace(config, data=replace(config.data, labels=None))
    assert str(error.value) == (
        "data.labels is the label store of the objectives that train on one, and of no other; "
        "got data.labels=None with TokenLabelConfig"
    )
    with pytest.raises(UserError) as error:
        train(replace(config, model=replace(config.model, classes=2)), tmp_path / "run", MACHINE, silent)
    assert str(error.value) == "the model must have a class for each of the 3 of the labels; got model.classes=2"


def test_images_without_a_class_and_a_single_class_are_refused(tmp_path: Path):
    folder = toy_data(tmp_path, images=4)
    (folder / "photos" / "loose.png").write_bytes((folder / "photos" / "cat" / "000.png").read_bytes())
    config = plain_labels(toy_config(folder, batch=2))
    with pytest.raises(UserError) as error:
        train(config, tmp_path / "run", MACHINE, silent)
    assert str(error.value) == (
        f"1 images of '{folder / 'photos'}' lie in no class folder, such as 'loose.png'; move them into one"
    )
    shutil.rmtree(folder / "photos" / "dog")
    with pytest.raises(UserError) as error:
        train(config, tmp_path / "run", MACHINE, silent)
    assert str(error.value) == f"'{folder / 'photos'}' has 1 classes; training needs two at least"


def test_a_folder_with_other_files_is_refused(data: Path, tmp_path: Path):
    with pytest.raises(UserError) as error:
        train(toy_config(data), tmp_path.parent, MACHINE, silent)
    assert str(error.value) == f"'{tmp_path.parent}' holds other files and no config.yaml; give a new or empty folder"
    with pytest.raises(UserError) as error:
        train(toy_config(data), tmp_path / "no" / "run", MACHINE, silent)
    assert str(error.value) == f"cannot make the run folder '{tmp_path / 'no' / 'run'}': No such file or directory"


def test_a_wrong_key_in_yaml_is_named_with_the_closest(data: Path, tmp_path: Path):
    content = to_plain(toy_config(data))
    content["optimizer"]["learning_rte"] = 1.0
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError) as error:
        read_config(tmp_path / "config.yaml")
    assert str(error.value) == "unknown key 'optimizer.learning_rte'; did you mean learning_rate?"
    (tmp_path / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match="cannot be read as YAML"):
        read_config(tmp_path / "config.yaml")


def program(data: Path, run: Path, kind: str, processes: int = 1) -> None:
    """A run in processes of its own."""
    start = [*TORCHRUN, "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *start, "-m", "tests.train.toy_runs", str(data), str(run), kind, "0"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr


def assert_close(one: Path, other: Path) -> None:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.slow
def test_two_processes_train_as_one_does_batch_norm_included(data: Path, tmp_path: Path):
    program(data, tmp_path / "one", "float64")
    program(data, tmp_path / "two", "float64", processes=2)
    assert_close(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_accumulated_parts_train_as_the_whole_batch_does(data: Path, tmp_path: Path):
    program(data, tmp_path / "whole", "whole")
    program(data, tmp_path / "parts", "accumulated")
    program(data, tmp_path / "both", "accumulated", processes=2)
    assert_close(tmp_path / "whole", tmp_path / "parts")
    assert_close(tmp_path / "whole", tmp_path / "both")


@pytest.mark.slow
def test_twenty_runs_killed_at_random_moments_end_bit_identical(data: Path, tmp_path: Path):
    command = [sys.executable, "-m", "tests.train.killed_runs", str(data), str(tmp_path / "run")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    runs = list(tmp_path.glob("done *"))
    assert runs
    for run in runs:
        assert_same(tmp_path / "whole", run)


@pytest.mark.slow
def test_sigterm_saves_and_ends_a_run_with_143(data: Path, tmp_path: Path):
    command = [sys.executable, "-m", "tests.train.toy_runs", str(data), str(tmp_path / "run"), "long run", "1"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE)
    with running:
        while running.poll() is None and not (tmp_path / "run" / "last").exists():
            time.sleep(0.05)
        running.terminate()
        assert running.wait(timeout=30) == 143
    assert (tmp_path / "run" / "last" / "model.safetensors").exists()


def workers_of(agent: int) -> list[int]:
    """The processes that torchrun started for the program, by any of its threads."""
    children = " ".join(path.read_text() for path in Path(f"/proc/{agent}/task").glob("*/children")).split()
    return [int(child) for child in children if b"toy_runs" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1])
def test_under_torchrun_a_killed_worker_does_not_end_the_run(data: Path, tmp_path: Path, place: int):
    program(data, tmp_path / "whole", "medium run", processes=2)
    restarting = [*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1"]
    arguments = ["-m", "tests.train.toy_runs", str(data), str(tmp_path / "run"), "medium run", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, *restarting, *arguments], stderr=subprocess.DEVNULL, env=environment
    ) as agent:
        while agent.poll() is None and not (tmp_path / "run" / "last").exists():
            time.sleep(0.02)
        os.kill(workers_of(agent.pid)[place], signal.SIGKILL)
        assert agent.wait(timeout=100) == 0
    assert (tmp_path / "restarts").read_text() == "1"
    assert_same(tmp_path / "whole", tmp_path / "run")
