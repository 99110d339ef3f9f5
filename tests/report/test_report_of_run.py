"""The report that a run keeps up, and that the run is the same with it."""

from dataclasses import replace
from pathlib import Path

import pytest

from alltokens.report import refresh
from alltokens.train.stopping import Stopped
from alltokens.train.trainer import train

from ..train.test_trainer import assert_same, silent, stop_at
from ..train.toy_runs import MACHINE, plain_labels, toy_config, toy_data
from .toy_pages import Parsed


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("data"))


def text_of(run: Path) -> str:
    return Parsed((run / "report.html").read_text()).text


def test_a_finished_run_has_its_report(data: Path, tmp_path: Path):
    train(toy_config(data), tmp_path / "run", MACHINE, silent)
    text = text_of(tmp_path / "run")
    assert "Finished, 2 epochs" in text
    assert "Token labels" in text
    assert "of tokens" in text
    assert "learning_rate: 0.01" in text
    assert "images a second" in text
    assert not list((tmp_path / "run").glob(".report*"))


def test_a_run_without_held_out_images_has_one_too(data: Path, tmp_path: Path):
    config = plain_labels(toy_config(data))
    config = replace(config, data=replace(config.data, validation=None))
    train(config, tmp_path / "run", MACHINE, silent)
    assert "This run has no held-out images" in text_of(tmp_path / "run")


def test_a_run_that_is_stopped_shows_what_it_has(data: Path, tmp_path: Path):
    config = toy_config(data)
    config = replace(config, schedule=replace(config.schedule, epochs=4))
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", MACHINE, stop_at(7))
    assert "Epoch 2 of 4" in text_of(tmp_path / "run")
    # Nothing is known of the second epoch any more that the page does not have, so it stays.
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", MACHINE, stop_at(8))
    assert "Epoch 2 of 4" in text_of(tmp_path / "run")
    assert "Worst mistakes" in text_of(tmp_path / "run")
    train(config, tmp_path / "run", MACHINE, silent)
    assert "Finished, 4 epochs" in text_of(tmp_path / "run")


def test_how_often_the_report_is_written_changes_nothing_else(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = toy_config(data)
    config = replace(config, model=replace(config.model, drop_path=0.5))
    monkeypatch.setattr(refresh, "SECONDS_BETWEEN", 0.0)
    train(config, tmp_path / "often", MACHINE, silent)
    monkeypatch.setattr(refresh.Refreshed, "offer", lambda *arguments, **named: None)
    train(config, tmp_path / "never", MACHINE, silent)
    assert not (tmp_path / "never" / "report.html").exists()
    assert_same(tmp_path / "often", tmp_path / "never")
