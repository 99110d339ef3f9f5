"""The `alltokens` command as a whole: what it lists, and how it ends."""

import os
import subprocess
import sys
import warnings
from contextlib import suppress
from types import SimpleNamespace

import pytest

import alltokens
from alltokens.cli import main as command
from alltokens.cli.main import COMMANDS, main

COMMAND = [sys.executable, "-c", "import sys; from alltokens.cli.main import main; sys.exit(main())"]


def test_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"alltokens {alltokens.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(capsys, arguments):
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(capsys, name):
    with suppress(SystemExit):  # of tyro, where a command has flags and no actions
        main([name, "--help"])
    assert f"usage: alltokens {name}" in capsys.readouterr().out


def test_a_mistyped_command_is_one_sentence(capsys):
    assert main(["modles"]) == 2
    assert capsys.readouterr().err == "error: unknown command 'modles'; did you mean models, labels?\n"


def test_control_c_ends_with_130(monkeypatch):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "import_module", lambda name: SimpleNamespace(run=interrupt))
    assert main(["models"]) == 130


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line(monkeypatch, capsys):
    def warn(arguments):
        warnings.warn("heads are left out", stacklevel=1)

    monkeypatch.setattr(command, "import_module", lambda name: SimpleNamespace(run=warn))
    assert main(["models"]) == 0
    assert capsys.readouterr().err == "warning: heads are left out\n"


def test_our_own_bugs_keep_their_traceback(monkeypatch):
    def fail(arguments):
        raise ValueError("not the user's doing")

    monkeypatch.setattr(command, "import_module", lambda name: SimpleNamespace(run=fail))
    with pytest.raises(ValueError, match="not the user's doing"):
        main(["models"])


def test_a_shell_sees_the_sentence_the_status_and_no_traceback():
    finished = subprocess.run([*COMMAND, "describe", "x"], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (2, "", "error: unknown model 'x'\n")


def test_a_closed_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    finished = subprocess.run([*COMMAND, "--version"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_file_that_the_system_refuses_is_one_sentence(tmp_path, capsys):
    name = "a" * 300 + ".pth"
    assert main(["predict", name, str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: '{name}' cannot be used: File name too long\n"


def test_output_on_a_full_disk_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "models"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: the output cannot be used: No space left on device\n")
