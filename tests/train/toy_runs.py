"""Small runs for the tests of the trainer, and a program that does one: python -m tests.train.toy_runs FOLDER ..."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import torch

from alltokens.annotate.write import annotate
from alltokens.augment.finish import FinishConfig
from alltokens.augment.pipeline import AugmentConfig
from alltokens.models.config import ConvStem, LinearStem, ViTConfig
from alltokens.models.timm_model import TimmConfig
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.train.average import AverageConfig
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.machine import Machine
from alltokens.train.optimizer import OptimizerConfig
from alltokens.train.schedule import ScheduleConfig
from alltokens.train.stopping import Stopped
from alltokens.train.trainer import train

from ..annotate.toys import CPU, photo_folder, toy_annotator, toy_job

SIZE = (32, 32)
BATCH = 8
MACHINE = Machine(torch.device("cpu"), workers=0)
SAVING = replace(MACHINE, saving=inf)
"""Saves after every step, however short."""


def toy_data(folder: Path, images: int = 24) -> Path:
    """Photos of two classes, and labels of three by an annotator."""
    photo_folder(folder / "photos", images)
    toy_labels(folder)
    return folder


def toy_labels(folder: Path) -> None:
    """Of all photos that are there."""
    annotator = replace(toy_annotator(3), classes=("cat", "dog", "other"))
    annotate(toy_job(folder / "photos", annotator, top_k=2), folder / "labels", CPU, lambda done, total: None)


def toy_config(folder: Path, **changes) -> TrainConfig:
    """Token labels, MixToken and a conv stem with batch norm, for two epochs."""
    config = TrainConfig(
        model=ViTConfig(
            width=16,
            depth=2,
            heads=2,
            stem=ConvStem(channels=4, kernels=(3, 3, 4), strides=(2, 1, 4)),
            image_size=SIZE,
            classes=3,
            token_head=True,
        ),
        data=DataConfig(root=str(folder / "photos"), validation=str(folder / "photos"), labels=str(folder / "labels")),
        objective=TokenLabelConfig(finish=FinishConfig(erase=0.25)),
        augment=AugmentConfig(policy="rand-m9-mstd0.5-inc1"),
        optimizer=OptimizerConfig(learning_rate=1e-2, reference_batch=None),
        schedule=ScheduleConfig(epochs=2, warmup_epochs=0.5, warmup_rate=1e-4),
        average=AverageConfig(decay=0.9, reference_batch=None),
        batch=BATCH,
        precision="float32",
    )
    return replace(config, **changes)


def plain_labels(config: TrainConfig) -> TrainConfig:
    """The same on class labels alone."""
    return replace(
        config,
        model=replace(config.model, token_head=False, classes=2),
        data=replace(config.data, labels=None),
        objective=ClassifyConfig(mix=MixConfig(kind="token")),
    )


def without_batch_norm(config: TrainConfig) -> TrainConfig:
    """The same with a stem that knows nothing of the batch."""
    return replace(config, model=replace(config.model, stem=LinearStem(patch=8)))


def silent(done: int, total: int, note: str) -> None:
    """No progress."""


def stop_at(step: int) -> Callable[[int, int, str], None]:
    """Sends the process itself the signal to stop when a step is done."""

    def report(done: int, total: int, note: str) -> None:
        if done == step * BATCH:
            os.kill(os.getpid(), signal.SIGTERM)

    return report


def main() -> None:
    """Used by tests that need a process, or several under torchrun."""
    data, run, kind, workers, *how = sys.argv[1:]
    torch.set_num_threads(1)
    Path(run).with_name("restarts").write_text(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    config = toy_config(Path(data))
    exact = replace(config, precision="float64", optimizer=replace(config.optimizer, clip=0.5))
    kinds = {
        "medium run": replace(config, schedule=replace(config.schedule, epochs=40)),
        "long run": replace(config, schedule=replace(config.schedule, epochs=1000)),
        "float64": exact,
        "unaveraged": replace(exact, average=None),
        "fp16": replace(config, precision="fp16"),
        "lamb": replace(exact, optimizer=replace(exact.optimizer, kind="lamb")),
        "timm": replace(exact, model=TimmConfig(name="test_resnet", classes=3, image_size=SIZE)),
        "accumulated": replace(without_batch_norm(exact), accumulate=2),
        "whole": without_batch_norm(exact),
    }
    try:
        machine = replace(
            MACHINE,
            workers=int(workers),
            saving=1.0,
            shard="sharded" in how,
            compile="compiled" in how,
            recompute="recomputed" in how,
        )
        train(kinds[kind], Path(run), machine, stop_at(4) if "stopped" in how else silent)
    except Stopped as stopped:
        sys.exit(stopped.status)


if __name__ == "__main__":
    main()
