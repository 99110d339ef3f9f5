"""`alltokens train`, as typed."""

import os
import re
import signal
from pathlib import Path

import pytest

from alltokens.cli.main import main
from alltokens.train.journal import read_reports
from alltokens.train.run_folder import read_config

from ..train.toy_runs import toy_data

SMALL = [
    *["--model.width", "16", "--model.heads", "2", "--model.depth", "1", "--model.image-size", "32", "32"],
    *[
        "--precision",
        "float32",
        "--batch",
        "8",
        "--schedule.epochs",
        "2",
        "--schedule.warmup-epochs",
        "0",
        "--workers",
        "0",
    ],
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("data"), images=16)


def train(data: Path, *flags: str, recipe: str = "lvvit_t_token_labels") -> int:
    known = ["--data.root", str(data / "photos"), "--data.labels", str(data / "labels")]
    return main(["train", recipe, *known, *SMALL, *flags])


def test_a_recipe_trains_on_a_folder_and_its_labels(data: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(data) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("run folder runs/lvvit_t_token_labels: ")
    assert re.search(r"training: 32 of 32 images, .*, loss \d\.\d{3}\n", printed.err)
    assert len(read_reports(tmp_path / "runs" / "lvvit_t_token_labels" / "metrics.jsonl")) == 2


def test_the_classes_are_those_of_the_data(data: Path, tmp_path: Path):
    assert train(data, "--folder", str(tmp_path / "run")) == 0
    assert read_config(tmp_path / "run" / "config.yaml").model.classes == 3


def test_flags_that_have_no_part_in_the_result_are_no_part_of_the_config(data: Path, tmp_path: Path):
    own = "--recompute True --deterministic True --tensorboard True --augment device".split()
    assert train(data, "--folder", str(tmp_path / "run"), *own) == 0
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    assert train(data, "--folder", str(tmp_path / "run")) == 0


def test_the_config_of_a_run_is_a_recipe(data: Path, tmp_path: Path):
    assert train(data, "--folder", str(tmp_path / "run")) == 0
    config = str(tmp_path / "run" / "config.yaml")
    assert main(["train", config, "--folder", str(tmp_path / "again"), "--workers", "0"]) == 0
    assert (tmp_path / "again" / "config.yaml").read_text() == (tmp_path / "run" / "config.yaml").read_text()


def test_a_signal_saves_and_the_same_command_goes_on(data: Path, tmp_path: Path, capsys, monkeypatch):
    from alltokens.train.training import Training

    step = Training.take_step

    def interrupted(training, parts):
        if training.step == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(training, parts)

    monkeypatch.setattr(Training, "take_step", interrupted)
    with pytest.raises(SystemExit) as end:
        train(data, "--folder", str(tmp_path / "run"))
    assert end.value.code == 143
    assert capsys.readouterr().err.endswith("stopped by SIGTERM, and saved; the same command goes on\n")
    monkeypatch.undo()
    assert train(data, "--folder", str(tmp_path / "run")) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["lvvit_t_plain_labels"], "there is nothing to train on; give --data.root FOLDER"),
        (
            ["lvvit_t_relabel", "--data.root", "x"],
            "'lvvit_t_relabel' trains on labels; give --data.labels STORE ('alltokens annotate' makes one)",
        ),
        (["lvvit_t_plain_labels", "--batch", "0"], "batch must be at least 1; got batch=0"),
        (
            ["nothing.yaml"],
            "'nothing.yaml' cannot be read as YAML ([Errno 2] No such file or directory: 'nothing.yaml')",
        ),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], sentence: str, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    assert capsys.readouterr().err == f"error: {sentence}\n"
    assert list(tmp_path.iterdir()) == []
