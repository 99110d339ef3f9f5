"""The training step of LV-ViT-S over timm's DeiT-S, what token labels add to it, and the step fed from JPEG files.

    python benchmarks/training.py --photos FOLDER                   # everything; on a GPU bf16, batch 256, compiled
    python benchmarks/training.py --photos FOLDER --parts steps     # a part of it; the others keep their figures

`steps`: one step of the trainer on tensors that are ready in memory (copy, erasing, targets, MixToken, loss, fused
AdamW, average), with token labels and with plain ones, and in turns with them timm's DeiT-S (forward, loss, backward,
fused AdamW), all as CUDA graphs. `models`: LV-ViT-S and DeiT-S in that last, plain step, without graphs. `files`: the
step with token labels fed by the loader from 500 x 375 JPEGs of quality 90 with all cores, augmented by the workers and
on the device, in rounds; beside it batches that are only made, and those that are brought to the device as well, and of
each how much of the time the process waits for a batch. Written to benchmarks/results/training.json (training_cpu.json
without a GPU).
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import timm
import torch
from models import training_step
from photos import image_folder
from step import BATCH, BATCHES, FIRST_STEPS, prepared, ready_batch
from timing import elapsed, environment, median_seconds, read_results, write_results

from alltokens.annotate import write
from alltokens.annotate.annotator import open_annotator
from alltokens.annotate.canvas import Canvas
from alltokens.data.batch import Batch
from alltokens.data.loader import train_batches
from alltokens.data.order import Share
from alltokens.data.samples import TrainSamples
from alltokens.labels.store import LabelStore
from alltokens.models.vit import VisionTransformer
from alltokens.models.zoo import find
from alltokens.objectives.mixing import MixConfig
from alltokens.processes import Processes
from alltokens.recipes.token_labeling import mixed, supervised
from alltokens.sources.source import open_source
from alltokens.train.config import TrainConfig
from alltokens.train.machine import Machine
from alltokens.train.training import Training

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
NAME = "training" if CUDA else "training_cpu"
CORES = len(os.sched_getaffinity(0))
MACHINE = Machine(DEVICE, workers=CORES, compile=CUDA)
SECONDS = 12.0 if CUDA else 30.0
FILES, CLASSES = (8 * 1024, 1000) if CUDA else (256, 8)
FED_STEPS, ROUNDS = (80, 3) if CUDA else (4, 1)
"""Steps from files that are timed, after the first ones, and how often: a host's cores vary from minute to minute."""

Figures = dict[str, Any]


TOKEN_LABELS = prepared(supervised("lvvit_s", "token_labels"))
PLAIN_LABELS = prepared(mixed(supervised("lvvit_s", "plain_labels"), MixConfig(kind="token")))


@cache
def training_of(config: TrainConfig) -> Training:
    """A trainer's work on this machine, compiled once for all parts."""
    return Training(config, 5000, MACHINE, Processes(0, 1))


def ready_step(training: Training) -> Callable[[], Any]:
    """A step of it, on batches that are ready."""
    batches = [ready_batch(training.config, seed) for seed in range(BATCHES)]

    def step() -> None:
        training.take_step([batches[training.step % BATCHES]])

    for _ in range(FIRST_STEPS):
        step()
    return step


def deit_small() -> torch.nn.Module:
    """timm's, with the drop path that it was published with."""
    return timm.create_model("deit_small_patch16_224", drop_path_rate=0.1)


def steps(photos: str, folder: Path) -> Figures:
    """Images a second of three steps in turns, and the memory of the first alone."""
    with MACHINE.at_work():
        rivals = {"lvvit_s, token labels": ready_step(training_of(TOKEN_LABELS))}
        peak = MACHINE.memory_gib()
        rivals["lvvit_s, plain labels"] = ready_step(training_of(PLAIN_LABELS))
        rivals["timm deit_s"] = training_step(deit_small(), BATCH, compiled=CUDA, graphs=CUDA)
        seconds = median_seconds(rivals, SECONDS)
    token, plain, deit = (seconds[name] for name in rivals)
    return {
        "batch": BATCH,
        "lvvit_s_step_over_deit_s": round(deit / token, 4),
        "lvvit_s_plain_step_over_deit_s": round(deit / plain, 4),
        "token_label_overhead": round(token / plain - 1, 4),
        "peak_gib": round(peak, 2),
        "images_per_second": {name: round(BATCH / value, 1) for name, value in seconds.items()},
    }


def models(photos: str, folder: Path) -> Figures:
    """Both networks in the same plain step: what the trainer adds is left out."""
    ours = VisionTransformer(replace(find("lvvit_s"), token_head=False, token_weight=0.0))
    if CUDA:
        ours = ours.to(memory_format=torch.channels_last)
    rivals = {
        "lvvit_s": training_step(ours, BATCH, compiled=CUDA),
        "timm deit_s": training_step(deit_small(), BATCH, compiled=CUDA),
    }
    seconds = median_seconds(rivals, SECONDS)
    return {
        "model_step_over_deit_s": round(seconds["timm deit_s"] / seconds["lvvit_s"], 4),
        "model_images_per_second": {name: round(BATCH / value, 1) for name, value in seconds.items()},
    }


def files(photos: str, folder: Path) -> Figures:
    """Images a second from files, by each path and in each round, over those on ready tensors in the same process."""
    samples = labelled_samples(photos, folder)
    rounds: dict[str, list[float]] = {}
    waiting: dict[str, list[float]] = {}
    with MACHINE.at_work():
        training = training_of(TOKEN_LABELS)
        ready = BATCH / median_seconds({"ready": ready_step(training)}, SECONDS / 3)["ready"]
        stages: dict[str, Callable[[Batch], Any]] = {
            "made": len,
            "brought": lambda batch: batch.to(DEVICE).augmented(),
            "trained on": partial(take_step, training),
        }
        for way, (stage, use) in ROUNDS * list(product(("workers", "device"), stages.items())):
            name = f"{stage}, augmented by the {way}"
            rate, waited = fed(samples, replace(MACHINE, augment=way), use)
            rounds.setdefault(name, []).append(round(rate, 1))
            waiting.setdefault(name, []).append(round(waited, 3))
            print(f"{name:40} {rate:8.1f} images/s, {waited:.1%} of the time without a batch", flush=True)
    best = max((name for name in rounds if name.startswith("trained on")), key=lambda name: median(rounds[name]))
    return {
        "cores": CORES,
        "end_to_end_over_step": round(median(rounds[best]) / ready, 4),
        "end_to_end_by": best,
        "end_to_end_images_per_second": {"ready tensors": round(ready, 1), **rounds},
        "end_to_end_waiting_for_batches": waiting,
    }


def take_step(training: Training, batch: Batch) -> None:
    """One part is the whole step."""
    training.take_step([batch])


def labelled_samples(photos: str, folder: Path) -> TrainSamples:
    """Files with labels of a ResNet-18 that has learned nothing: its maps are as large as any."""
    root = image_folder(photos, folder, FILES, CLASSES)
    torch.manual_seed(0)
    torch.save(timm.create_model("resnet18").state_dict(), folder / "resnet18.pth")
    # Maps of 18 x 18 cells, as the batches have that are ready: others would be compiled for anew.
    annotator = open_annotator("timm/resnet18", folder / "resnet18.pth", size=576)
    source = open_source(str(root))
    canvas = Canvas("square", annotator.image_size, annotator.stride, annotator.interpolation)
    job = write.Job(source, annotator, canvas, top_k=5, flip=False, class_map=None, records_per_shard=4096)
    # As classes are numbered here, the annotator's names are of no use.
    named = replace(job, annotator=replace(annotator, classes=tuple(f"{number:04}" for number in range(1000))))
    write.annotate(named, folder / "labels", write.Machine(DEVICE, 256, CORES), lambda done, total, note="": None)
    store = LabelStore(folder / "labels")
    return TrainSamples(source, store, store.classes, TOKEN_LABELS.augment, TOKEN_LABELS.model.image_size, seed=0)


def fed(samples: TrainSamples, machine: Machine, use: Callable[[Batch], Any]) -> tuple[float, float]:
    """Images a second of what is done with each batch of the loader, and the share of the time it is waited for."""
    samples, share = samples.left_to(machine.augmented_by), Share(batch=BATCH)
    batches = train_batches(samples, share, range(10**6), workers=machine.workers, device=machine.device)
    waits = []

    def turn() -> None:
        start = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - start)
        use(batch)

    for _ in range(FIRST_STEPS + 2 * CORES):  # what the workers made while this process was not asking
        turn()
    seconds = elapsed(turn, FED_STEPS)
    return FED_STEPS * BATCH / seconds, sum(waits[-FED_STEPS:]) / seconds


PARTS: dict[str, Callable[[str, Path], Figures]] = {"steps": steps, "models": models, "files": files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", required=True, help="a folder of photos")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    arguments = parser.parse_args()
    for part in arguments.parts:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            figures = PARTS[part](arguments.photos, Path(folder))
        results = read_results(NAME)
        ran = results.pop("parts", {}) | {part: environment()}
        write_results(NAME, results | figures | {"parts": ran})
        for key, value in figures.items():
            print(f"{key:32} {value}", flush=True)
        print(f"{part}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
