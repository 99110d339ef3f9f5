"""Annotates a folder of images, killed twenty times: python -m tests.annotate.killed_runs DATA STORE."""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from alltokens.annotate.write import annotate

from ..kills import kill_again_and_again
from .toys import CPU, toy_job


def main() -> None:
    data, store = map(Path, sys.argv[1:])

    def work(folder: Path) -> None:
        torch.set_num_threads(1)
        annotate(toy_job(data), folder, replace(CPU, workers=1), lambda done, total: None)

    def is_finished(folder: Path) -> bool:
        return (folder / "meta.json").exists() and not (folder / "unfinished.json").exists()

    kill_again_and_again(work, store, is_finished)


if __name__ == "__main__":
    main()
