"""What the README says is so: its map of files, its example, its commands and what they print."""

import re
import shlex
from pathlib import Path

import pytest

from alltokens.cli.main import COMMANDS, main
from docs.draw_models import drawing

from .annotate.toys import photo_folder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


MINUTES = ("demo", "fit photos", "annotate photos labels --annotator train")
"""Commands that take so long; tests of their own run them."""


def section(title: str) -> str:
    """The text under a heading, up to the next one."""
    return README.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def code_block(text: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found.group(1)


def mapped_files() -> set[str]:
    """Paths in the map of files: a name that ends in / is a folder, and what is indented under it lies in it."""
    files, folder = set(), ""
    for line in code_block(section("Where things are"), "text").splitlines():
        name = line.split()[0]
        if not line.startswith("  "):
            folder = name if name.endswith("/") else ""
            files |= {name} - {folder}
        else:
            files.add(folder + name)
    return files


def test_the_map_of_files_equals_the_tree():
    package = ROOT / "src" / "alltokens"
    tree = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name not in ("__init__.py", "py.typed")
    }
    assert mapped_files() == tree


@pytest.mark.parametrize("title", ["As a library", "Token labels in your own loop"])
def test_an_example_runs_and_prints_what_its_comments_say(title, capsys):
    example = code_block(section(title), "python")
    exec(compile(example, "README.md", "exec"), {})
    said = [line.split("  # ", 1)[1] for line in example.splitlines() if line.startswith("print(")]
    assert capsys.readouterr().out.splitlines() == said


def test_every_command_is_in_the_table_and_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    photo_folder(tmp_path / "photos", 2)
    lines = re.findall(r"\| `alltokens ([^`]+)` \|", section("What there is"))
    assert {line.split()[0] for line in lines} == set(COMMANDS)
    assert set(MINUTES) < set(lines)
    for line in (line for line in lines if line not in MINUTES):
        assert main(shlex.split(line)) == 0
        assert capsys.readouterr().out


def test_errors_look_as_shown(capsys):
    shown = code_block(section("Errors"), "text").splitlines()
    for command, error in zip(shown[::2], shown[1::2], strict=True):
        assert main(shlex.split(command.removeprefix("$ alltokens "))) == 2
        assert capsys.readouterr().err == error + "\n"


@pytest.mark.parametrize("target", ["demo", "test", "test-slow", "lint"])
def test_make_targets_that_are_named_exist(target):
    assert f"make {target}" in README
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_the_picture_is_drawn_from_the_models_as_they_are():
    assert (ROOT / "docs" / "models.svg").read_text() == drawing()


def test_linked_files_exist():
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
