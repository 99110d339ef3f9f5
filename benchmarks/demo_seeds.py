"""The demo with several seeds and every kind of labels: held-out accuracy of each, and how far token labels are ahead.

    python benchmarks/demo_seeds.py --folder FOLDER                 # five seeds, one training after the other
    python benchmarks/demo_seeds.py --folder FOLDER --at-once 16    # on a machine with as many cores

A second call goes on where the first was stopped. "plain labels, not mixed" is the same model without MixToken.
"""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import get_args

import torch
from timing import environment, write_results

from alltokens.demo.configs import Extent, Labels
from alltokens.demo.run import ANNOTATOR, prepare, run_folder, top1, train_with
from alltokens.train.machine import Machine

KINDS: tuple[Labels, ...] = get_args(Labels)


def machine_of(at_once: int) -> Machine:
    """One thread and no workers each where several train at once."""
    if at_once > 1:
        torch.set_num_threads(1)
    return Machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"), 0 if at_once > 1 else 2)


def prepared(folder: Path, at_once: int, seed: int) -> None:
    """Scenes, annotator and labels of a seed."""
    prepare(folder / str(seed), seed, machine_of(at_once), Extent())


def trained(folder: Path, at_once: int, place: tuple[Labels, int]) -> None:
    """One kind of labels with one seed."""
    kind, seed = place
    train_with(kind, folder / str(seed), seed, machine_of(at_once), Extent())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the runs lie")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS), help="of labels")
    parser.add_argument("--at-once", type=int, default=1, help="trainings that go on at the same time")
    arguments = parser.parse_args()
    folder, seeds, kinds = arguments.folder, range(arguments.seeds), arguments.kinds
    folder.mkdir(exist_ok=True)
    with ProcessPoolExecutor(arguments.at_once, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(partial(prepared, folder, arguments.at_once), seeds))
        list(pool.map(partial(trained, folder, arguments.at_once), product(kinds, seeds)))
    found = {kind: [top1(run_folder(folder / str(seed), kind)) for seed in seeds] for kind in kinds}
    found["annotator"] = [top1(folder / str(seed) / ANNOTATOR) for seed in seeds]
    ahead = [token - plain for token, plain in zip(found["token labels"], found["plain labels"], strict=True)]
    figures = {
        "token_minus_plain": round(100 * mean(ahead), 2),
        "token_minus_plain_by_seed": [round(100 * points, 2) for points in ahead],
        "token_minus_plain_deviation": round(100 * stdev(ahead), 2),
        "top1_by_seed": found,
        "top1_mean": {kind: round(mean(values), 4) for kind, values in found.items()},
        "top1_deviation": {kind: round(stdev(values), 4) for kind, values in found.items()},
    }
    write_results("demo", environment() | figures)
    for key, value in figures.items():
        print(f"{key:28} {value}")


if __name__ == "__main__":
    main()
