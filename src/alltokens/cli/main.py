"""The `alltokens` command: finds the file of the command named, and turns a user's mistake into one sentence."""

import errno
import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

from alltokens import __version__
from alltokens.errors import RunFailed, UserError, did_you_mean

COMMANDS = {
    "annotate": "what a classifier sees in every part of every image, kept in a label store",
    "demo": "plain labels against labels for every token, on scenes that are made on the spot, in minutes",
    "describe": "what a model is: its stages, their shapes, its parameters and FLOPs, and its config",
    "evaluate": "how often a trained model is right on a data set, under both rules, by class if asked",
    "export": "a model for onnxruntime, torch.export, timm or the Hugging Face Hub, checked against eager",
    "fit": "the whole way for a folder of your own: labels, training, accuracy and a report",
    "labels": "look into a label store, verify, draw, convert, pack and unpack it",
    "models": "every model by name, with its cost and the accuracy its paper prints",
    "predict": "what a trained model sees in some images",
    "recipes": "every recipe of the papers' tables and figures, with its model, labels and printed accuracy",
    "train": "a recipe on your images, from nothing or from where it was interrupted",
}

INTERRUPTED = 130
RUN_FAILED, USER_ERROR = 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = cast(Any, print_warning)
            run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return RUN_FAILED if isinstance(error, RunFailed) else USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output (`| head`) has had enough.
        say_no_more()
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        if error.filename is None:
            say_no_more()
        what = "the output" if error.filename is None else f"'{error.filename}'"
        print(f"error: {what} cannot be used: {error.strerror}", file=sys.stderr)
        return USER_ERROR
    return 0


def say_no_more() -> None:
    """Python would complain again of what cannot be written, when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_warning(message: Warning | str, *_where: object) -> None:
    """A warning as one line; where in the code it comes from helps nobody at a terminal."""
    with suppress(OSError):  # nobody may be listening
        print(f"warning: {message}", file=sys.stderr)


def run(arguments: list[str]) -> None:
    """Answer --help and --version, or hand the rest of the line to a command."""
    first, *rest = arguments or ["--help"]
    if first in ("-h", "--help"):
        print(overview())
    elif first == "--version":
        print(f"alltokens {__version__}")
    elif first in COMMANDS:
        import_module(f"alltokens.cli.{first}").run(rest)
    else:
        raise UserError(f"unknown command '{first}'{did_you_mean(first, COMMANDS)}")


def overview() -> str:
    """Usage and the commands that exist."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {sentence}" for name, sentence in COMMANDS.items()]
    return "\n".join(
        [
            "usage: alltokens COMMAND [OPTIONS]",
            "",
            "Vision transformers in which every token is supervised.",
            "",
            *lines,
            "",
            "alltokens COMMAND --help says more; alltokens --version prints the version.",
        ]
    )
