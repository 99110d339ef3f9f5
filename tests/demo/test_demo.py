"""The demo end to end, small: it goes on where it was stopped, and its page and summary say what came of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alltokens.cli import demo as command
from alltokens.cli.main import main
from alltokens.demo.configs import RATES, Extent, Labels, transformer_config
from alltokens.demo.run import ANNOTATOR, LABELS, data_of, prepare, run_folder, top1, train_with
from alltokens.labels.store import LabelStore
from alltokens.models.config import ViTConfig
from alltokens.train.journal import read_reports
from alltokens.train.machine import Machine
from alltokens.train.run_folder import METRICS

TINY = Extent(scenes=96, held_out=40, annotator_epochs=1, epochs=1)
CPU = Machine(torch.device("cpu"), workers=0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "demo"
    prepare(folder, 0, CPU, TINY)
    return folder


def test_labels_have_a_cell_for_each_token_and_the_digits_names(prepared):
    store = LabelStore(prepared / LABELS)
    assert len(store) == 96
    assert store.classes == tuple("0123456789")
    labelled = replace(data_of(prepared), labels=str(prepared / LABELS))
    model = transformer_config("token labels", labelled, TINY, 0).model
    assert isinstance(model, ViTConfig)
    assert tuple(store[store.keys()[0]].normalizer.shape) == model.grid


def test_what_is_there_is_not_made_again(prepared):
    files = {path for path in prepared.rglob("*") if path.is_file()}
    before = {path: path.stat().st_ino for path in files}, (prepared / ANNOTATOR / METRICS).read_bytes()
    prepare(prepared, 0, CPU, TINY)
    assert {path for path in prepared.rglob("*") if path.is_file()} == files
    assert ({path: path.stat().st_ino for path in files}, (prepared / ANNOTATOR / METRICS).read_bytes()) == before


@pytest.mark.parametrize("kind", RATES)
def test_every_kind_of_labels_trains_the_same_model(prepared, kind: Labels):
    train_with(kind, prepared, 0, CPU, TINY)
    run = run_folder(prepared, kind)
    assert 0 <= top1(run) <= 1
    assert top1(run) == read_reports(run / METRICS)[-1]["top1"]


@pytest.mark.parametrize(
    ("plain", "token", "sentence"),
    [
        (0.25, 0.5, "Token labels are 25.0 points ahead of plain labels: 50.0% against 25.0%."),
        (0.5, 0.5, "Token labels did not win this time: 50.0% against 50.0% with plain labels."),
        (0.5, 0.25, "Token labels did not win this time: 25.0% against 50.0% with plain labels."),
    ],
)
def test_the_verdict_says_who_won(plain, token, sentence):
    assert command.compared(plain, token) == sentence


@pytest.mark.slow
def test_the_command_writes_a_page_and_a_summary(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "Extent", lambda: TINY)
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert summary["token_top1"] == top1(tmp_path / "demo" / "token_labels")
    assert summary["plain_top1"] == top1(tmp_path / "demo" / "plain_labels")
    assert summary["annotator_top1"] == top1(tmp_path / "demo" / ANNOTATOR)
    assert summary["seconds"] > 0
    page = (tmp_path / "demo" / "report.html").read_text()
    said = capsys.readouterr().out
    assert command.compared(summary["plain_top1"], summary["token_top1"]) in said
    assert "flower.jpg" in page
    assert "http://" not in page
    assert "https://" not in page
