"""Trains, killed twenty times, each time with another number of workers: python -m tests.train.killed_runs DATA RUN."""

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import torch

from alltokens.train.journal import read_reports
from alltokens.train.trainer import train

from ..kills import kill_again_and_again
from .toy_runs import SAVING, toy_config


def main() -> None:
    data, run = map(Path, sys.argv[1:])
    config = toy_config(data)
    config = replace(config, schedule=replace(config.schedule, epochs=6))
    workers = itertools.cycle((0, 1, 2, 4))

    def work(folder: Path) -> None:
        torch.set_num_threads(1)
        train(config, folder, replace(SAVING, workers=count), lambda *told: None)

    def is_finished(folder: Path) -> bool:
        nonlocal count
        count = next(workers)
        metrics = folder / "metrics.jsonl"
        return metrics.exists() and len(read_reports(metrics)) == 6

    count = 0
    kill_again_and_again(work, run, is_finished)


if __name__ == "__main__":
    main()
