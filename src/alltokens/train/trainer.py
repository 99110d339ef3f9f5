"""A run from its config to its folder: epochs of steps, an evaluation after each, from anywhere on."""

import json
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NoReturn

import torch

from alltokens.data.batch import Batch
from alltokens.data.loader import evaluation_batches, train_batches
from alltokens.data.order import Share
from alltokens.data.samples import EvaluationSamples, TrainSamples
from alltokens.data.split import hold_out
from alltokens.errors import require
from alltokens.evaluate.classification import Answers
from alltokens.files import whole_folder
from alltokens.labels.agreement import warn_below_zero, warn_of_maps_below_zero
from alltokens.labels.store import LabelStore, the_first
from alltokens.models.weights import Model, save_model
from alltokens.objectives.distill import DistillConfig
from alltokens.objectives.mixing import grid_of
from alltokens.objectives.teachers import classes_of_teacher, maps_of_views
from alltokens.objectives.token_label import TokenLabelConfig, TokenLabeling
from alltokens.processes import Processes, is_first_process
from alltokens.progress import Report
from alltokens.report.refresh import Refreshed
from alltokens.report.run_page import Run, run_page
from alltokens.sources.source import Source, open_source
from alltokens.train.checkpoint import load_checkpoint, save_checkpoint
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.journal import Journal, open_boards, read_reports
from alltokens.train.machine import Machine
from alltokens.train.pace import Pace
from alltokens.train.run_folder import (
    BEST,
    CONFIG,
    ENVIRONMENT,
    LAST,
    METRICS,
    REPORT,
    begin_run,
    require_own_run,
)
from alltokens.train.sharding import gathered_model
from alltokens.train.stopping import Stopped, StopRequest, stop_request
from alltokens.train.training import Training
from alltokens.train.usage import usage_of

LOOKED_AT = 16
"""Images, at most, by which a teacher is judged before it teaches."""


@dataclass(frozen=True)
class RunData:
    """The images of a run."""

    train: TrainSamples
    validation: EvaluationSamples | None
    classes: tuple[str, ...]
    """Names of the model's classes."""


def classes_of(config: TrainConfig) -> tuple[str, ...]:
    """Names of the classes of a model that is trained so: those of who labels its data, where somebody does."""
    data = config.data
    if data.labels is not None:
        return LabelStore(data.labels).classes
    own = tuple(open_training_source(data).classes)
    match config.objective:
        case DistillConfig(teacher=str() as teacher, teacher_weights=weights):
            return classes_of_teacher(teacher, weights, own)
        case TokenLabelConfig(teacher=str() as teacher, teacher_weights=weights):
            return classes_of_teacher(teacher, weights, own)
        case _:
            return own


def open_data(config: TrainConfig) -> RunData:
    """Both sets, checked against each other, the labels and the model."""
    data = config.data
    source, held_out = open_sets(data)
    store = None if data.labels is None else LabelStore(data.labels)
    classes = classes_of(config)
    require(
        len(classes) == config.model.classes,
        f"the model must have a class for each of the {len(classes)} of the "
        f"{'data' if store is None else 'labels'}; got model.classes={config.model.classes}",
    )
    if store is not None and is_first_process() and getattr(config.objective, "rule", None) in (None, "zero_fill"):
        warn_below_zero(store)
    size = config.model.image_size
    train = TrainSamples(source, store, classes, config.augment, size, config.seed, data.alignment)
    validation = None if held_out is None else EvaluationSamples(held_out, classes, config.evaluation, size)
    return RunData(train, validation, classes)


def open_training_source(data: DataConfig) -> Source:
    """The images to train on and, where some are held out, those as well."""
    source = open_source(data.root, data.split)
    require(len(source.classes) > 1, f"'{data.root}' has {len(source.classes)} classes; training needs two at least")
    return source


def open_sets(data: DataConfig) -> tuple[Source, Source | None]:
    """The images to train on and those to evaluate on, all of them with a class."""
    source = open_training_source(data)
    require_classes(source)
    if data.held_out is not None:
        return hold_out(source, data.held_out)
    if data.validation is None:
        return source, None
    validation = open_source(data.validation, data.validation_split)
    require_classes(validation)
    return source, validation


def require_classes(source: Source) -> None:
    """Raise for images that cannot be right or wrong."""
    unlabelled = [key for key, label in zip(source.keys, source.labels, strict=True) if label < 0]
    require(
        not unlabelled,
        f"{len(unlabelled):,} images of '{source.name}' have no class, {the_first(unlabelled)}; "
        "give them one or remove them",
    )


def train(config: TrainConfig, folder: Path, machine: Machine, report: Report) -> None:
    """Train, or go on where the folder says; raises Stopped where a signal asked for it."""
    with Processes.of_torchrun() as processes, stop_request() as request, machine.at_work():
        data = open_data(config)
        with processes.alone_in(folder):
            processes.agree(lambda: require_own_run(folder, config, data.classes, data.train.source.keys))
            with closing(Runner(config, folder, machine, processes, data)) as runner:
                runner.run(request, report)


class Runner:
    """One process's part of a run."""

    def __init__(
        self, config: TrainConfig, folder: Path, machine: Machine, processes: Processes, data: RunData
    ) -> None:
        self.config, self.folder, self.machine, self.processes, self.data = config, folder, machine, processes, data
        self.share = Share(
            batch=config.batch // config.accumulate,
            rank=processes.rank,
            processes=processes.count,
            repeats=config.repeats,
            parts=config.accumulate,
        )
        steps = self.share.batches(len(data.train.source)) // config.accumulate
        self.training = Training(config, steps, machine, processes)
        self.training.rate()  # raises where the schedule and the optimizer do not go together
        self.look_at_teacher()
        # Only now, when no more of the config can be refused: the folder keeps to it from here on.
        processes.agree(lambda: begin_run(folder, config, data.classes, data.train.source.keys))
        self.steps = config.schedule.total_epochs * steps
        """Of the whole run."""
        self.sums: dict[str, float] = {}
        """Losses and times of the epoch's steps so far, added up."""
        self.note = ""
        """What is said of the last step."""
        self.skipped: set[str] = set()
        """Images that could not be read so far."""
        self.best = -1.0
        known = self.restore()
        self.journal = Journal(folder / METRICS, known) if processes.rank == 0 else None
        self.boards = open_boards(machine.boards, folder, self.training.step) if processes.rank == 0 else []
        self.page = Refreshed(folder / REPORT)
        self.pace = Pace(machine.saving)

    def look_at_teacher(self) -> None:
        """Warn of a teacher whose answers would be turned upside down, as of a label store."""
        objective, source = self.training.objective, self.data.train.source
        if not isinstance(objective, TokenLabeling) or objective.config.rule != "zero_fill" or self.processes.rank:
            return
        teacher = objective.teacher
        if teacher is None:
            return
        samples = EvaluationSamples(source, self.data.classes, self.config.evaluation, self.config.model.image_size)
        batch = samples.batch(range(0, len(source), -(-len(source) // LOOKED_AT)))
        if len(batch):
            maps = maps_of_views(teacher, batch.images.to(self.machine.device))
            warn_of_maps_below_zero(maps, teacher.name, len(teacher.classes))

    def restore(self) -> int:
        """Go on from the last checkpoint, if there is one; bytes of the metrics that it knows of."""
        if whole_folder(self.folder / LAST) is None:
            return 0
        checkpoint = load_checkpoint(self.folder / LAST)
        self.training.restore(checkpoint)
        counters = dict(checkpoint.counters)
        self.best = float(counters["best"])
        self.sums = own_sums(counters, self.processes)
        return int(counters["metrics_bytes"])

    def close(self) -> None:
        """Nothing more is reported."""
        if self.journal is not None:
            self.journal.close()
        for board in self.boards:
            board.close()

    def run(self, request: StopRequest, report: Report) -> None:
        """All steps that are left."""
        training, batch = self.training, self.config.batch
        report(training.step * batch, self.steps * batch, "")
        with closing(self.batches()) as batches:
            while training.step < self.steps:
                self.next_step(batches)
                report(training.step * batch, self.steps * batch, self.note)
                epoch, begun = divmod(training.step, training.steps_per_epoch)
                if not begun:
                    self.end_epoch(epoch - 1)
                self.save_or_stop(request)

    def batches(self) -> Generator[Batch]:
        """Of all steps that are left; those of the next epoch are made while one ends."""
        epoch, done = divmod(self.training.step, self.training.steps_per_epoch)
        samples = self.data.train.left_to(self.machine.augmented_by)
        epochs = range(epoch, self.config.schedule.total_epochs)
        first = done * self.config.accumulate
        return train_batches(samples, self.share, epochs, first, self.machine.workers, self.machine.device)

    def next_step(self, batches: Iterator[Batch]) -> None:
        """One more, and what it took."""
        began = time.monotonic()
        parts = list(islice(batches, self.config.accumulate))
        waited = time.monotonic()
        self.take(self.training.take_step(parts))
        self.add({"seconds": time.monotonic() - began, "waiting": waited - began})
        self.tell_of_skipped(parts)

    def save_or_stop(self, request: StopRequest) -> None:
        """Save when it is time, at the end, and before the run stops because any of its processes was told to."""
        told = self.processes.gather((request.number, self.pace.is_due()))
        number, is_due, is_over = max(each[0] for each in told), any(each[1] for each in told), self.is_over()
        if number or is_due or is_over:
            self.save()
        if number and not is_over:
            self.stop(number)

    def is_over(self) -> bool:
        """Whether no step is left."""
        return self.training.step == self.steps

    def stop(self, number: int) -> NoReturn:
        """What was saved is shown as well."""
        self.page.write()
        raise Stopped(number)

    def take(self, values: dict[str, float]) -> None:
        """What a step has to report, to the sums and to whoever watches."""
        self.add(values)
        self.note = f"loss {values['loss']:.3f}" if values else self.note

    def add(self, values: dict[str, float]) -> None:
        """To the sums of the epoch."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def tell_of_skipped(self, batches: Sequence[Batch]) -> None:
        """Name each image that cannot be read once: another stands in for it, or the accuracy is without it."""
        for key in dict.fromkeys(key for batch in batches for key in batch.skipped):
            if key not in self.skipped:
                self.skipped.add(key)
                warnings.warn(f"the image '{key}' cannot be read and is left out; repair or remove it", stacklevel=2)

    def end_epoch(self, epoch: int) -> None:
        """Evaluate and report."""
        self.take(self.training.settle())
        steps = self.training.steps_per_epoch
        means = mean_of(self.processes.gather(self.sums))
        self.sums = {}
        seconds, waiting = means.pop("seconds"), means.pop("waiting")
        line: dict[str, int | float | str] = {"epoch": epoch, "step": self.training.step, "rate": self.training.rate()}
        line |= {f"train_{name}": value / steps for name, value in means.items()}
        line["train_seconds"] = round(seconds, 3)
        line["images_per_second"] = round(steps * self.config.batch / seconds, 1)
        line["data_wait"] = round(waiting / seconds, 4)
        line["memory_gib"] = round(max(self.processes.gather(self.machine.memory_gib())), 3)
        answers = None
        if self.data.validation is not None:
            started = time.monotonic()
            answers = self.evaluate(self.data.validation)
            line |= {"top1": answers.accuracy(), "top5": answers.accuracy(5), "loss": answers.mean_loss()}
            line["evaluation_seconds"] = round(time.monotonic() - started, 3)
            if answers.accuracy() > self.best:
                self.best = answers.accuracy()
                self.keep_best(gathered_model(self.training.kept.model))
        if self.journal is not None:
            self.journal.report(line)
            for board in self.boards:
                board.report(self.training.step, line)
            self.show(answers, at_once=self.is_over())

    def keep_best(self, model: Model) -> None:
        """Before the checkpoint: a run that is killed between the two goes on from before both."""
        if self.processes.rank == 0:
            (self.folder / BEST).mkdir(exist_ok=True)
            save_model(model, self.folder / BEST / "model.safetensors", usage_of(self.config, self.data.classes))

    def show(self, answers: Answers | None, at_once: bool) -> None:
        """Bring the report up to date, with the answers of the epoch that was just reported."""
        self.page.offer(lambda: run_page(self.described(), read_reports(self.folder / METRICS), answers), at_once)

    def described(self) -> Run:
        """What the report says of the run as a whole."""
        return Run(
            folder=self.folder,
            model=self.config.model,
            grid=grid_of(self.training.objective.model),
            objective=self.config.objective,
            train=self.data.train,
            validation=self.data.validation,
            classes=self.data.classes,
            epochs=self.config.schedule.total_epochs,
            repeats=self.config.repeats,
            config=(self.folder / CONFIG).read_text(),
            environment=json.loads((self.folder / ENVIRONMENT).read_text()),
        )

    @torch.no_grad()
    def evaluate(self, samples: EvaluationSamples) -> Answers:
        """Answers of all processes for the held-out images."""
        share = Share(
            batch=self.config.batch // self.config.accumulate // self.processes.count * self.processes.count,
            rank=self.processes.rank,
            processes=self.processes.count,
            drop_last=False,
        )
        kept = self.training.kept.eval()
        own = []
        for batch in evaluation_batches(samples, share, self.machine.workers, self.machine.device):
            self.tell_of_skipped([batch])
            # A sharded model answers when all processes ask: one that has no image left asks about a blank one.
            asked = batch if len(batch) else replace(batch, images=batch.images.new_zeros(1, *batch.images.shape[1:]))
            with self.training.precision.autocast():
                prediction = kept.evaluate(asked.to(self.machine.device))
            if len(batch):
                own.append(Answers.of(batch.keys, batch.classes, prediction.scores(0.0)))
        self.training.objective.train()
        joined = [answers for part in self.processes.gather(own) for answers in part]
        return Answers.join(joined)

    def save(self) -> None:
        """Write the checkpoint; the metrics up to here belong to it."""
        with self.pace.timed():
            self.take(self.training.settle())
            counters: dict[str, int | float | str] = {"best": self.best}
            for rank, sums in enumerate(self.processes.gather(self.sums)):
                counters |= {f"sum {rank} {name}": value for name, value in sums.items()}
            checkpoint = self.training.checkpoint(counters)
            if self.data.validation is None:
                # The newest weights: there is nothing to compare them on.
                self.keep_best(checkpoint.model)
            if self.journal is not None:
                checkpoint.counters["metrics_bytes"] = self.journal.size()
                save_checkpoint(self.folder / LAST, checkpoint, usage_of(self.config, self.data.classes))
            self.processes.wait()


def own_sums(counters: dict[str, int | float | str], processes: Processes) -> dict[str, float]:
    """The sums that this process had when the counters were saved; where there were more or fewer, the mean of all."""
    by_rank: dict[str, dict[str, float]] = {}
    for counter, value in counters.items():
        if counter.startswith("sum "):
            _, rank, name = counter.split(" ")
            by_rank.setdefault(rank, {})[name] = float(value)
    every = list(by_rank.values())
    return every[processes.rank] if len(every) == processes.count else mean_of(every)


def mean_of(every: list[dict[str, float]]) -> dict[str, float]:
    """Of what each process has."""
    return {name: sum(values[name] for values in every) / len(every) for name in every[0]} if every else {}
