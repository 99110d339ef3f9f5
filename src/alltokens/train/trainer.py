"""A run from its config to its folder: epochs of steps, an evaluation and a checkpoint after each, from anywhere on."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from alltokens.data.batch import Batch
from alltokens.data.loader import evaluation_batches, train_batches
from alltokens.data.order import Share
from alltokens.data.samples import EvaluationSamples, TrainSamples, model_classes
from alltokens.errors import require
from alltokens.evaluate.classification import Answers
from alltokens.files import whole_folder
from alltokens.labels.store import LabelStore, the_first
from alltokens.models.weights import save_model
from alltokens.objectives.classify import evaluate
from alltokens.processes import Processes
from alltokens.progress import Report
from alltokens.sources.source import Source, open_source
from alltokens.train.checkpoint import load_checkpoint, save_checkpoint
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.journal import Journal
from alltokens.train.run_folder import BEST, LAST, METRICS, open_run
from alltokens.train.stopping import Stopped, StopRequest, stop_request
from alltokens.train.training import Machine, Training


@dataclass(frozen=True)
class RunData:
    """The images of a run."""

    train: TrainSamples
    validation: EvaluationSamples | None
    classes: tuple[str, ...]
    """Names of the model's classes."""


def classes_of(data: DataConfig) -> tuple[str, ...]:
    """Names of the classes of a model that is trained on this data."""
    store = None if data.labels is None else LabelStore(data.labels)
    return store.classes if store is not None else tuple(open_source(data.root, data.split).classes)


def open_data(config: TrainConfig) -> RunData:
    """Both sets, checked against each other, the labels and the model."""
    data = config.data
    source = open_source(data.root, data.split)
    store = None if data.labels is None else LabelStore(data.labels)
    classes = model_classes(source, store)
    require(len(source.classes) > 1, f"'{data.root}' has {len(source.classes)} classes; training needs two at least")
    require_classes(source)
    require(
        len(classes) == config.model.classes,
        f"the model must have a class for each of the {len(classes)} of the "
        f"{'data' if store is None else 'labels'}; got model.classes={config.model.classes}",
    )
    train = TrainSamples(source, store, config.augment, config.seed)
    if data.validation is None:
        return RunData(train, None, classes)
    held_out = open_source(data.validation, data.validation_split)
    require_classes(held_out)
    return RunData(train, EvaluationSamples(held_out, classes, config.evaluation), classes)


def require_classes(source: Source) -> None:
    """Raise for images that cannot be right or wrong."""
    unlabelled = [key for key, label in zip(source.keys, source.labels, strict=True) if label < 0]
    require(
        not unlabelled,
        f"{len(unlabelled):,} images of '{source.name}' lie in no class folder, {the_first(unlabelled)}; "
        "move them into one",
    )


def train(config: TrainConfig, folder: Path, machine: Machine, report: Report) -> None:
    """Train, or go on where the folder says; raises Stopped where a signal asked for it."""
    with Processes.of_torchrun() as processes, stop_request() as request:
        data = open_data(config)
        processes.agree(lambda: open_run(folder, config, data.classes))
        with closing(Runner(config, folder, machine, processes, data)) as runner:
            runner.run(request, report)


class Runner:
    """One process's part of a run."""

    def __init__(
        self, config: TrainConfig, folder: Path, machine: Machine, processes: Processes, data: RunData
    ) -> None:
        self.config, self.folder, self.machine, self.processes, self.data = config, folder, machine, processes, data
        self.share = Share(batch=config.batch // config.accumulate, rank=processes.rank, processes=processes.count)
        steps = self.share.batches(len(data.train.source)) // config.accumulate
        require(steps > 0, f"there are {len(data.train.source):,} images, fewer than a batch of {config.batch:,}")
        self.training = Training(config, steps, machine, processes)
        self.sums: dict[str, float] = {}
        """Losses of the epoch's steps so far, added up."""
        self.best = -1.0
        known = self.restore()
        self.journal = Journal(folder / METRICS, known) if processes.rank == 0 else None

    def restore(self) -> int:
        """Go on from the last checkpoint, if there is one; bytes of the metrics that it knows of."""
        if whole_folder(self.folder / LAST) is None:
            return 0
        checkpoint = load_checkpoint(self.folder / LAST)
        self.training.restore(checkpoint)
        counters = dict(checkpoint.counters)
        self.best = float(counters["best"])
        self.sums = {
            name.removeprefix("sum "): float(value) for name, value in counters.items() if name.startswith("sum ")
        }
        return int(counters["metrics_bytes"])

    def close(self) -> None:
        """Nothing more is reported."""
        if self.journal is not None:
            self.journal.close()

    def run(self, request: StopRequest, report: Report) -> None:
        """All epochs that are left."""
        training, steps = self.training, self.training.steps_per_epoch
        total = self.config.schedule.total_epochs
        report(training.step, total * steps)
        while training.step < total * steps:
            epoch, done = divmod(training.step, steps)
            for parts in self.parts_of_steps(epoch, done):
                self.add(training.take_step(parts))
                report(training.step, total * steps)
                number = request.of_any(self.processes)
                if number and training.step % steps:
                    self.save()
                    raise Stopped(number)
            self.end_epoch(epoch)
            number = request.of_any(self.processes)
            if number and training.step < total * steps:
                raise Stopped(number)

    def add(self, values: dict[str, float]) -> None:
        """To the sums of the epoch."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def parts_of_steps(self, epoch: int, done: int) -> Iterator[list[Batch]]:
        """Batches of the steps that are left of an epoch, those of one step together."""
        parts, steps = self.config.accumulate, self.training.steps_per_epoch
        batches = train_batches(
            self.data.train, self.share, epoch, done * parts, self.machine.workers, self.machine.device
        )
        for _ in range(done, steps):
            yield list(islice(batches, parts))

    def end_epoch(self, epoch: int) -> None:
        """Evaluate, report and save."""
        self.add(self.training.settle())
        steps = self.training.steps_per_epoch
        every = self.processes.gather(self.sums)
        losses = {name: sum(sums[name] for sums in every) / len(every) / steps for name in self.sums}
        self.sums = {}
        line: dict[str, int | float | str] = {"epoch": epoch, "step": self.training.step, "rate": self.training.rate()}
        line |= {f"train_{name}": value for name, value in losses.items()}
        is_best = True
        if self.data.validation is not None:
            started = time.monotonic()
            answers = self.evaluate(self.data.validation)
            line |= {"top1": answers.accuracy(), "top5": answers.accuracy(5), "loss": answers.mean_loss()}
            line["evaluation_seconds"] = round(time.monotonic() - started, 3)
            is_best = answers.accuracy() > self.best
            self.best = max(self.best, answers.accuracy())
        if self.journal is not None:
            self.journal.report(line)
        # Before the checkpoint: a run that is killed between the two goes on from before both.
        if is_best and self.processes.rank == 0:
            (self.folder / BEST).mkdir(exist_ok=True)
            save_model(self.training.model, self.folder / BEST / "model.safetensors")
        self.save()

    @torch.inference_mode()
    def evaluate(self, samples: EvaluationSamples) -> Answers:
        """Answers of all processes for the held-out images."""
        share = Share(
            batch=self.config.batch // self.config.accumulate // self.processes.count * self.processes.count,
            rank=self.processes.rank,
            processes=self.processes.count,
            drop_last=False,
        )
        model = self.training.model.eval()
        own = []
        for batch in evaluation_batches(samples, share, self.machine.workers, self.machine.device):
            if len(batch):
                with self.training.autocast():
                    prediction = evaluate(model, batch.to(self.machine.device), self.config.objective.finish)
                own.append(Answers.of(batch.keys, batch.classes, prediction.scores(0.0)))
        self.training.objective.train()
        joined = [answers for part in self.processes.gather(own) for answers in part]
        return Answers.join(joined)

    def save(self) -> None:
        """Write the checkpoint; the metrics up to here belong to it."""
        self.add(self.training.settle())
        if self.journal is not None:
            counters: dict[str, int | float | str] = {"metrics_bytes": self.journal.size(), "best": self.best}
            counters |= {f"sum {name}": value for name, value in self.sums.items()}
            save_checkpoint(self.folder / LAST, self.training.checkpoint(counters))
        self.processes.wait()
