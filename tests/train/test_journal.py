"""Reports are whole lines, and a run that goes on continues where its checkpoint was made."""

import json
import os
import re
import subprocess
import sys

import pytest

from alltokens.errors import UserError
from alltokens.train.journal import Journal, TensorBoard, open_boards, read_reports
from alltokens.train.machine import Boards


def reports(count: int, start: int = 0) -> list[dict[str, int | float | str]]:
    return [{"step": step, "loss": 1 / (step + 1), "split": "train"} for step in range(start, count)]


def journal_of(path, count: int) -> Journal:
    journal = Journal(path)
    for values in reports(count):
        journal.report(values)
    return journal


def test_a_report_is_a_line_that_is_there_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    journal = journal_of(path, 3)
    assert [json.loads(line) for line in path.read_text().splitlines()] == reports(3)
    assert read_reports(path) == reports(3)
    journal.close()


@pytest.mark.parametrize("left", ["", '{"step": 9, "loss', '{"step": 9}\n{"st'])
def test_a_run_that_goes_on_writes_what_one_without_a_stop_would(tmp_path, left):
    whole, stopped = tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    journal_of(whole, 7).close()
    journal = journal_of(stopped, 4)
    known = journal.size()
    journal.report({"step": 4, "loss": 0.5})
    journal.close()
    with stopped.open("a") as file:
        file.write(left)
    journal = Journal(stopped, known)
    assert journal.size() == known
    for values in reports(7, start=4):
        journal.report(values)
    journal.close()
    assert stopped.read_bytes() == whole.read_bytes()


def test_a_run_without_a_checkpoint_begins_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n')
    Journal(path).close()
    assert path.read_bytes() == b""


def test_a_line_still_being_written_is_not_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    journal_of(path, 2).close()
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert read_reports(path) == reports(2)


@pytest.mark.parametrize("content", [None, b"", b'{"step": 0}\n', b'{"step": 0}\n{"step": 1, "loss": 0.25}\n'])
def test_a_file_of_another_run_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        Journal(path, 20)
    assert str(raised.value) == (
        f"'{path}' is not the file that the checkpoint knows: no line ends at byte 20 of its {len(content or b'')}; "
        "put back the run's own, or train in another folder"
    )
    assert (path.read_bytes() if path.exists() else None) == content


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_json_is_refused_before_anything_is_written(tmp_path, value):
    path = tmp_path / "metrics.jsonl"
    journal = journal_of(path, 1)
    with pytest.raises(UserError, match=f"^only finite numbers can be reported; got {{'step': 1, 'loss': {value}}}$"):
        journal.report({"step": 1, "loss": value})
    journal.close()
    assert read_reports(path) == reports(1)


def test_a_full_disk_is_one_sentence(tmp_path):
    small = tmp_path / "disk"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    path = small / "metrics.jsonl"
    journal = Journal(path)
    sentence = f"cannot write '{path}': the disk is full; free some space and run again"
    try:
        # The first line is written in part, the second not at all.
        for _ in range(2):
            with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
                journal.report({"text": "a" * 20_000})
    finally:
        journal.close()
        subprocess.run(["umount", small], check=True)


def test_tensorboard_that_is_not_installed_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError) as raised:
        TensorBoard(tmp_path)
    assert str(raised.value) == (
        "TensorBoard needs the package tensorboard; install it with pip install 'alltokens[tensorboard]'"
    )


def test_wandb_that_is_not_installed_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError) as raised:
        open_boards(Boards(wandb="project"), tmp_path, 0)
    assert str(raised.value) == (
        "Weights & Biases needs the package wandb; install it with pip install 'alltokens[wandb]'"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_goes_on_is_the_same_run_of_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for start in (0, 2):
        (board,) = open_boards(Boards(wandb="project"), tmp_path, start)
        for values in reports(start + 2, start):
            board.report(values["step"], values)
        board.close()
    name = (tmp_path / "wandb_id").read_text()
    runs = list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert [path.name for path in runs] == [f"run-{name}.wandb"] * 2


@pytest.mark.slow
def test_wandb_without_a_login_is_one_sentence(tmp_path):
    pytest.importorskip("wandb")
    # In a process of its own: wandb asks the environment once.
    program = (
        "from pathlib import Path; from alltokens.train.journal import WeightsAndBiases as Board; Board(Path(), 'a')"
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**own, "WANDB_MODE": "online", "NETRC": str(tmp_path / "netrc")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    sentence = r"UserError: Weights & Biases refuses the run: .*; log in, or set WANDB_MODE=offline"
    assert re.search(sentence, done.stderr.splitlines()[-1])


def test_tensorboard_reads_the_numbers_and_forgets_what_came_after_a_checkpoint(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for start, stop, scale in ((0, 4, 1.0), (2, 5, 2.0)):
        board = TensorBoard(tmp_path, start)
        for step in range(start, stop):
            board.report(step, {"loss": scale * step, "split": "train"})
        board.close()
    events = reading.EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(0, 0), (1, 1), (2, 4), (3, 6), (4, 8)]
