"""`alltokens models` lists what the zoo, the counts and the papers' tables say."""

import json

import pytest
from rich.console import Console

from alltokens.cli import table
from alltokens.cli.main import main
from alltokens.models.counts import count
from alltokens.models.zoo import MODELS


def test_piped_lines_hold_the_published_numbers(capsys):
    assert main(["models", "lvvit_s"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == "model params (M) GFLOPs tokens image top-1 (%) printed in".split()
    assert line.split() == "lvvit_s 26.2 6.6 14 x 14 224 x 224 83.3 TL, Table 1".split()


def test_a_glob_selects_names_in_order(capsys):
    assert main(["models", "lvvit_?"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == ["lvvit_l", "lvvit_m", "lvvit_s", "lvvit_t"]


def test_piped_lines_are_neither_cut_nor_wrapped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["models", "cait*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + sum(name.startswith("cait") for name in MODELS)
    assert "…" not in "".join(lines)


def test_a_terminal_gets_a_rule_under_the_heading(capsys, monkeypatch):
    monkeypatch.setattr(table, "Console", lambda: Console(force_terminal=True, width=100))
    assert main(["models", "lvvit_s"]) == 0
    assert "────" in capsys.readouterr().out


def test_json_holds_every_model_in_whole_numbers(capsys):
    assert main(["models", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [line["name"] for line in listed] == sorted(MODELS)
    assert next(line for line in listed if line["name"] == "lvvit_t") == {
        "name": "lvvit_t",
        "parameters": 8_534_720,
        "flops": count(MODELS["lvvit_t"]).flops,
        "grid": [14, 14],
        "image_size": [224, 224],
        "top1": 79.1,
        "where": "TL, Table 1",
    }


def test_a_model_without_a_printed_accuracy_says_so(capsys):
    assert main(["models", "lvvit_t_512", "--format", "json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["top1"], line["where"]) == (None, None)


@pytest.mark.parametrize(
    ("glob", "sentence"),
    [
        ("lvit_s", "no model matches 'lvit_s'; did you mean lvvit_s, vit_s, lvvit_t?"),
        ("zzzz*", "no model matches 'zzzz*'"),
    ],
)
def test_a_glob_without_a_match_names_the_closest(capsys, glob, sentence):
    assert main(["models", glob]) == 2
    assert capsys.readouterr().err == f"error: {sentence}\n"
