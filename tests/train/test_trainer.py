"""Runs from their config to their folder: what they write, going on after a stop, and many processes as one."""

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file

from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.loader import train_batches
from alltokens.data.order import Share
from alltokens.errors import UserError
from alltokens.export.hub import write_hub, write_timm
from alltokens.export.scores import record
from alltokens.models.factory import open_model
from alltokens.models.timm_model import TimmConfig
from alltokens.plain import to_plain
from alltokens.processes import Processes
from alltokens.train.checkpoint import load_checkpoint
from alltokens.train.journal import read_reports
from alltokens.train.machine import Boards
from alltokens.train.run_folder import read_config
from alltokens.train.stopping import Stopped
from alltokens.train.trainer import open_data, train
from alltokens.train.training import Training

from .toy_runs import BATCH, MACHINE, SAVING, SIZE, plain_labels, silent, stop_at, toy_config, toy_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # One more than whole batches: in the last of an evaluation one process of two has none.
    return toy_data(tmp_path_factory.mktemp("data"), images=25)


TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]


def weights(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of a run's last checkpoint, its averaged weights among them."""
    averaged = {f"average {name}": tensor for name, tensor in load_file(run / "last" / "model.safetensors").items()}
    return averaged | load_file(run / "last" / "training.safetensors")


def metrics(run: Path) -> list[dict]:
    """What was reported, apart from times, rates and memory."""
    own = re.compile("second|data_wait|memory")
    return [
        {name: x for name, x in line.items() if not own.search(name)} for line in read_reports(run / "metrics.jsonl")
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
    train(config, tmp_path / "run", MACHINE, lambda done, total, note: told.append((done, total)))
    assert told == [(8 * step, 48) for step in range(7)]
    assert read_config(tmp_path / "run" / "config.yaml") == config
    reports = metrics(tmp_path / "run")
    assert [line["epoch"] for line in reports] == [0, 1]
    assert {"step", "rate", "train_loss", "train_image", "top1", "top5", "loss"} <= reports[0].keys()
    assert ("train_token" in reports[0]) == (kind == "token labels")
    for name in ("last", "best"):
        model = open_model(tmp_path / "run" / name / "model.safetensors").eval()
        assert model(torch.zeros(1, 3, 32, 32)).image_logits.shape == (1, config.model.classes)


@pytest.mark.parametrize("kind", ["ours", "timm"])
def test_the_best_model_of_a_run_is_one_of_timms(data: Path, tmp_path: Path, kind: str):
    config = toy_config(data)
    if kind == "timm":
        config = replace(config, model=TimmConfig(name="test_resnet", classes=3, image_size=SIZE))
    train(config, tmp_path / "run", MACHINE, silent)
    best = open_model(tmp_path / "run" / "best" / "model.safetensors").eval()
    write_hub(best, record(best, "best", 0.9), tmp_path / "hub")
    timms = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).eval()
    images = torch.rand(2, 3, *SIZE)
    torch.testing.assert_close(timms(images), best(images).image_logits, rtol=0, atol=1e-5)
    if kind == "timm":
        write_timm(best, record(best, "best", 0.9), tmp_path / "timm.safetensors")
        plain = timm.create_model("test_resnet", num_classes=3, checkpoint_path=str(tmp_path / "timm.safetensors"))
        torch.testing.assert_close(plain.eval()(images), timms(images), rtol=0, atol=0)


def test_every_epoch_reports_its_time_rate_and_memory(data: Path, tmp_path: Path):
    train(toy_config(data), tmp_path / "run", MACHINE, silent)
    for line in read_reports(tmp_path / "run" / "metrics.jsonl"):
        assert line["images_per_second"] == pytest.approx(24 / line["train_seconds"], rel=0.05)
        assert 0 < line["data_wait"] < 1
        assert 0 < line["memory_gib"] < 100
        assert line["evaluation_seconds"] > 0


def test_whoever_watches_is_told_the_loss_of_the_step_before(data: Path, tmp_path: Path):
    notes = []
    train(toy_config(data), tmp_path / "run", MACHINE, lambda done, total, note: notes.append(note))
    assert notes[:2] == ["", ""]
    assert all(re.fullmatch(r"loss \d\.\d{3}", note) for note in notes[2:])
    assert len(set(notes)) == 6


def test_tensorboard_has_every_epoch_once_after_a_stop(data: Path, tmp_path: Path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    machine = replace(MACHINE, boards=Boards(tensorboard=True))
    with pytest.raises(Stopped):
        train(toy_config(data), tmp_path / "run", machine, stop_at(4))
    train(toy_config(data), tmp_path / "run", machine, silent)
    events = reading.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    found = [(event.step, event.value) for event in events.Scalars("train_loss")]
    assert found == [(line["step"], pytest.approx(line["train_loss"])) for line in metrics(tmp_path / "run")]


def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(data: Path, tmp_path: Path):
    config = toy_config(data)
    train(config, tmp_path / "whole", MACHINE, silent)
    for step, workers in [(1, 0), (3, 2), (5, 1)]:
        with pytest.raises(Stopped) as stopped:
            train(config, tmp_path / "run", replace(MACHINE, workers=workers), stop_at(step))
        assert stopped.value.status == 143
    train(config, tmp_path / "run", MACHINE, silent)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_a_run_that_fails_goes_on_from_the_last_checkpoint_in_the_middle_of_an_epoch_too(data: Path, tmp_path: Path):
    config = toy_config(data)
    train(config, tmp_path / "whole", MACHINE, silent)
    for machine, lost, saved in [(SAVING, 5, 4), (MACHINE, 6, 4), (SAVING, 6, 5)]:

        def fail(done: int, total: int, note: str, lost: int = lost) -> None:
            if done == lost * BATCH:
                raise RuntimeError("the power is gone")

        with pytest.raises(RuntimeError):
            train(config, tmp_path / "run", machine, fail)
        assert load_checkpoint(tmp_path / "run" / "last").counters["step"] == saved
    train(config, tmp_path / "run", MACHINE, silent)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_a_run_whose_device_augments_goes_on_after_a_stop_as_well(data: Path, tmp_path: Path):
    config, machine = toy_config(data), replace(MACHINE, augment="device")
    train(config, tmp_path / "whole", machine, silent)
    for step, workers in [(2, 2), (5, 0)]:
        with pytest.raises(Stopped):
            train(config, tmp_path / "run", replace(machine, workers=workers), stop_at(step))
    train(config, tmp_path / "run", machine, silent)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_what_augments_makes_no_difference_beyond_rounding(data: Path, tmp_path: Path):
    # Without the operations that make much of a level more or less, and with the kernel that torch shares with Pillow.
    augment = AugmentConfig(interpolation="bilinear", policy="rand-m9-n2-tweights")
    config = toy_config(data, augment=augment)
    for where in ("workers", "device"):
        train(config, tmp_path / where, replace(MACHINE, augment=where), silent)
    # Another seed makes another run of it.
    train(replace(config, seed=1), tmp_path / "seed", MACHINE, silent)
    one, other, another = (
        [report["train_loss"] for report in metrics(tmp_path / name)] for name in ("workers", "device", "seed")
    )
    assert one == pytest.approx(other, rel=0.02)
    assert abs(one[0] - other[0]) < 0.1 * abs(one[0] - another[0])


def test_a_finished_run_has_nothing_left_to_do(data: Path, tmp_path: Path):
    config = toy_config(data)
    train(config, tmp_path / "run", MACHINE, silent)
    before = weights(tmp_path / "run")
    told = []
    train(config, tmp_path / "run", MACHINE, lambda done, total, note: told.append((done, total)))
    assert told == [(48, 48)]
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


def test_a_loss_that_is_not_finite_is_kept_out_of_the_weights_before_the_host_knows(data: Path):
    config = toy_config(data)
    training = Training(config, 3, MACHINE, Processes(0, 1))
    samples = open_data(config).train
    batches = list(train_batches(samples, Share(batch=8), range(1)))
    training.take_step(batches[:1])
    good = training.objective.model.head.bias.detach().clone()
    training.objective.model.head.bias.data[0] = math.inf
    assert training.take_step(batches[1:2])["loss"] > 0
    training.objective.model.head.bias.data[0] = good[0]
    assert all(parameter.isfinite().all() for parameter in training.objective.parameters())
    assert all(x.isfinite().all() for state in training.optimizer.state.values() for x in state.values())
    with pytest.raises(UserError, match=r"^training diverged in step 1: loss is (nan|inf), image is (nan|inf)"):
        training.take_step(batches[2:])


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
        ({"batch": 26}, "there are 25 images, fewer than a batch of 26; make the batch smaller"),
    ],
)
def test_mistakes_are_one_sentence(data: Path, tmp_path: Path, changes: dict, sentence: str):
    with pytest.raises(UserError) as error:
        train(toy_config(data, **changes), tmp_path / "run", MACHINE, silent)
    assert str(error.value) == sentence


def test_labels_and_classes_must_fit_together(data: Path, tmp_path: Path):
    config = toy_config(data)
    with pytest.raises(UserError) as error:
        replace(config, data=replace(config.data, labels=None))
    assert str(error.value) == (
        "data.labels is the label store of the objectives that train on one, and of no other; "
        "got data.labels=None with TokenLabelConfig"
    )
    with pytest.raises(UserError) as error:
        replace(config.data, labels=None, alignment="published")
    assert str(error.value) == "data.alignment is about labels; got data.alignment=published without data.labels"
    with pytest.raises(UserError) as error:
        replace(config, repeats=0)
    assert str(error.value) == "repeats must be at least 1; got repeats=0"
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
        f"1 images of '{folder / 'photos'}' have no class, such as 'loose.png'; give them one or remove them"
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
    sentence = (
        f"cannot write to '{tmp_path / 'no' / 'run'}': No such file or directory; give a folder in an existing one"
    )
    assert str(error.value) == sentence


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


def program(data: Path, run: Path, kind: str, processes: int = 1, how: tuple[str, ...] = ()) -> None:
    """A run in processes of its own."""
    start = [*TORCHRUN, "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *start, "-m", "tests.train.toy_runs", str(data), str(run), kind, "0", *how]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (done.returncode == 0) == ("stopped" not in how), done.stderr


def assert_close(one: Path, other: Path) -> None:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-9, atol=1e-9, msg=name)
    for ours, others in zip(metrics(one), metrics(other), strict=True):
        assert ours == pytest.approx(others, rel=1e-6)


SHARDED = ("sharded",)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float64", "unaveraged", "lamb", "timm"])
def test_two_processes_train_as_one_does_batch_norm_included(data: Path, tmp_path: Path, kind: str):
    program(data, tmp_path / "one", kind)
    program(data, tmp_path / "two", kind, processes=2)
    program(data, tmp_path / "sharded", kind, processes=2, how=SHARDED)
    assert_close(tmp_path / "one", tmp_path / "two")
    assert_close(tmp_path / "one", tmp_path / "sharded")


@pytest.mark.slow
def test_a_compiled_model_computes_its_blocks_again(data: Path, tmp_path: Path):
    program(data, tmp_path / "kept", "float64", how=("compiled",))
    program(data, tmp_path / "again", "float64", how=("compiled", "recomputed"))
    assert_close(tmp_path / "kept", tmp_path / "again")


@pytest.mark.slow
def test_a_sharded_model_is_compiled_block_by_block(data: Path, tmp_path: Path):
    program(data, tmp_path / "one", "float64")
    program(data, tmp_path / "compiled", "float64", 2, (*SHARDED, "compiled", "recomputed"))
    assert_close(tmp_path / "one", tmp_path / "compiled")


@pytest.mark.slow
def test_fp16_goes_on_sharded_as_if_it_had_not_been_stopped(data: Path, tmp_path: Path):
    program(data, tmp_path / "whole", "fp16", 2, SHARDED)
    program(data, tmp_path / "run", "fp16", 2, (*SHARDED, "stopped"))
    program(data, tmp_path / "run", "fp16", 2, SHARDED)
    assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_accumulated_parts_train_as_the_whole_batch_does(data: Path, tmp_path: Path):
    program(data, tmp_path / "whole", "whole")
    program(data, tmp_path / "parts", "accumulated")
    program(data, tmp_path / "both", "accumulated", processes=2)
    program(data, tmp_path / "sharded", "accumulated", processes=2, how=SHARDED)
    for name in ("parts", "both", "sharded"):
        assert_close(tmp_path / "whole", tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), SHARDED], ids=["whole", "sharded"])
def test_two_processes_that_are_stopped_go_on_as_if_they_had_not_been(data: Path, tmp_path: Path, how: tuple[str, ...]):
    program(data, tmp_path / "whole", "float64", 2, how)
    program(data, tmp_path / "run", "float64", 2, (*how, "stopped"))
    program(data, tmp_path / "run", "float64", 2, how)
    assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_a_run_goes_on_sharded_or_not_with_any_number_of_processes(data: Path, tmp_path: Path):
    program(data, tmp_path / "one", "float64")
    program(data, tmp_path / "first sharded", "float64", 2, (*SHARDED, "stopped"))
    program(data, tmp_path / "first sharded", "float64")
    program(data, tmp_path / "then sharded", "float64", how=("stopped",))
    program(data, tmp_path / "then sharded", "float64", 2, SHARDED)
    for name in ("first sharded", "then sharded"):
        assert_close(tmp_path / "one", tmp_path / name)


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
        assert agent.wait(timeout=400) == 0
    assert (tmp_path / "restarts").read_text() == "1"
    assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_under_torchrun_a_run_that_is_told_to_stop_saves(data: Path, tmp_path: Path):
    """torchrun tells every process, and its loader's workers with it."""
    command = [*TORCHRUN, "--nproc-per-node", "2", "-m", "alltokens", "train", str(tmp_path / "toy.yaml")]
    config = toy_config(data)
    config = replace(config, schedule=replace(config.schedule, epochs=1000))
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(to_plain(config)))
    flags = ["--folder", str(tmp_path / "run"), "--workers", "2", "--saving", "0.0001"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, *command, *flags], stderr=subprocess.PIPE, text=True, env=environment
    ) as agent:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while agent.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= 2):
            time.sleep(0.05)
        agent.send_signal(signal.SIGTERM)
        _, said = agent.communicate(timeout=100)
    assert said.count("stopped by SIGTERM, and saved; the same command goes on") == 1
    assert (tmp_path / "run" / "last").exists()


@pytest.mark.slow
def test_under_torchrun_a_mistake_is_a_sentence_in_every_process(data: Path, tmp_path: Path):
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(to_plain(toy_config(data))))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    command = [*TORCHRUN, "--nproc-per-node", "2", "-m", "alltokens", "train", str(tmp_path / "toy.yaml")]
    flags = ["--folder", str(tmp_path / "run"), "--workers", "0"]
    done = subprocess.run([sys.executable, *command, *flags], capture_output=True, text=True, check=False)
    sentence = f"error: '{tmp_path / 'run'}' holds other files and no config.yaml; give a new or empty folder"
    assert done.stderr.count(sentence) == 2
    assert "Connection closed by peer" not in done.stderr
