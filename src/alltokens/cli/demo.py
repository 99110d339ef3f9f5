"""`alltokens demo`: plain labels against token labels, on scenes that are made on the spot."""

import json
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from alltokens.cli.device import own_device
from alltokens.cli.flags import parse
from alltokens.cli.table import print_table
from alltokens.cli.train import ended_when_stopped
from alltokens.demo.configs import Extent, Labels
from alltokens.demo.page import demo_page
from alltokens.demo.run import ANNOTATOR, prepare, run_folder, top1, train_with
from alltokens.files import write_atomically
from alltokens.report.page import write_page
from alltokens.train.machine import Machine
from alltokens.train.run_folder import REPORT, write_text

KINDS: tuple[Labels, ...] = ("plain labels", "token labels")
SUMMARY = "summary.json"


@dataclass(frozen=True)
class Flags:
    """See what labels for every token do: two small models on the same scenes of handwritten digits, in minutes.

    Nothing is downloaded. The same command goes on with a demo that was interrupted.
    """

    folder: Path = Path("demo")
    """The folder to write."""
    seed: int = 0
    """Of the scenes, the first weights and all that is random."""


def run(arguments: list[str]) -> None:
    """All of it, and what came of it."""
    flags = parse(Flags, arguments, "alltokens demo")
    started = time.monotonic()
    machine, extent = Machine(own_device(), min(2, os.cpu_count() or 1)), Extent()
    with ended_when_stopped():
        prepare(flags.folder, flags.seed, machine, extent)
        for kind in KINDS:
            train_with(kind, flags.folder, flags.seed, machine, extent)
    accuracies = {kind: top1(run_folder(flags.folder, kind)) for kind in KINDS}
    annotator = top1(flags.folder / ANNOTATOR)
    verdict = compared(accuracies["plain labels"], accuracies["token labels"])
    write_page(flags.folder / REPORT, demo_page(flags.folder, KINDS, verdict))
    summary = {
        "plain_top1": accuracies["plain labels"],
        "token_top1": accuracies["token labels"],
        "annotator_top1": annotator,
        "seconds": round(time.monotonic() - started, 1),
    }
    write_atomically(flags.folder / SUMMARY, partial(write_text, json.dumps(summary, indent=1) + "\n"))
    rows = [["annotator", f"{annotator:.1%}"], *([kind, f"{accuracy:.1%}"] for kind, accuracy in accuracies.items())]
    print_table(["trained with", "top-1, held out"], rows, ["trained with"])
    print(verdict)
    print(f"{flags.folder / REPORT} shows it; {flags.folder / SUMMARY} has the numbers")


def compared(plain: float, token: float) -> str:
    """Who won, in one sentence."""
    points = 100 * (token - plain)
    if points > 0:
        return f"Token labels are {points:.1f} points ahead of plain labels: {token:.1%} against {plain:.1%}."
    return f"Token labels did not win this time: {token:.1%} against {plain:.1%} with plain labels."
