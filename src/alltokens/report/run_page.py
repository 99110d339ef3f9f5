"""The page of one run: how far it is, its curves, what it trains on, what it gets wrong, and how to repeat it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from markupsafe import Markup

from alltokens import __version__
from alltokens.data.samples import EvaluationSamples, TrainSamples
from alltokens.evaluate.classification import Answers, ClassFigures, by_class, confusion_counts, confusions
from alltokens.labels.align import ImageTarget
from alltokens.models.config import ViTConfig
from alltokens.models.timm_model import TimmConfig
from alltokens.models.zoo import MODELS
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.progress import duration
from alltokens.report.charts import Bar, Series, bar_chart, heat_map, line_chart, number, percent
from alltokens.report.page import render, whole_percent
from alltokens.report.samples import LEAST_SHARE, Objective, mistakes_of, training_pictures, words_for

MOST_IN_MATRIX = 30
"""Classes up to which confusions are shown as a matrix, and accuracies for each of them."""
MOST_BESIDE = 12
"""Classes up to which the matrix leaves room for something beside it."""
MOST_CONFUSIONS = 20
WORST_CLASSES = 20

Report = Mapping[str, int | float | str]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What stays the same about a run."""

    folder: Path
    model: ViTConfig | TimmConfig
    grid: tuple[int, int]
    """Rows and columns of the model's tokens."""
    objective: Objective
    train: TrainSamples
    validation: EvaluationSamples | None
    classes: tuple[str, ...]
    """Names of the model's classes."""
    epochs: int
    repeats: int
    """Times that an image comes in an epoch."""
    config: str
    """The whole config as YAML."""
    environment: Mapping[str, object]
    """With what it was begun."""


@dataclass(frozen=True)
class Figure:
    """A number to be seen first."""

    name: str
    value: str
    note: str = ""


def run_page(run: Run, reports: Sequence[Report], answers: Answers | None) -> str:
    """After the epochs that the reports are of; `answers` are those of the last of them."""
    epoch = int(reports[-1]["epoch"])
    values: dict[str, object] = {
        "title": f"{model_name(run.model)} on {Path(run.train.source.name).name or run.train.source.name}",
        "summary": summary(run),
        "done": epoch + 1,
        "epochs": run.epochs,
        "figures": figures(run, reports),
        "curves": curves(run, reports),
        "samples": training_pictures(run.train, run.objective, run.grid, run.classes, epoch, run.repeats),
        "samples_are": describe_samples(run.objective),
        "evaluated": None,
        "commands": commands(run),
        "config": run.config,
        "environment": {name: value for name, value in run.environment.items() if name != "command"},
        "version": __version__,
        "written": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    }
    if answers is not None and run.validation is not None:
        values["evaluated"] = evaluated(answers, run.validation, run.classes)
    return render("run.html.jinja", values)


def model_name(config: ViTConfig | TimmConfig) -> str:
    """As the model is called where it is published, whatever its size of images and its classes."""
    if isinstance(config, TimmConfig):
        return f"timm/{config.name}"
    own = architecture(config)
    known = (name for name, other in MODELS.items() if architecture(other) == own)
    return next(known, f"Transformer of {config.depth} blocks, width {config.width}")


def architecture(config: ViTConfig) -> dict[str, object]:
    """What makes it another model."""
    free = ("classes", "image_size", "drop_path", "token_head", "token_weight")
    return {name: value for name, value in asdict(config).items() if name not in free}


def summary(run: Run) -> list[str]:
    """What is trained on what, in a few words each."""
    source, held_out = run.train.source, run.validation
    return [
        describe_objective(run.objective),
        f"{len(source):,} training images",
        "no held-out images" if held_out is None else f"{len(held_out.source):,} held-out images",
        f"{len(run.classes):,} classes",
        f"{run.model.image_size[0]} x {run.model.image_size[1]} pixels, {run.grid[0]} x {run.grid[1]} tokens",
    ]


IMAGE_TARGETS: dict[ImageTarget, str] = {
    "class_label": "Class labels",
    "score_map": "Score maps over the view (ReLabel)",
    "blend": "Class labels blended with score maps",
}


def describe_objective(objective: Objective) -> str:
    """What images are compared with."""
    if isinstance(objective, ClassifyConfig):
        return IMAGE_TARGETS[objective.image_target]
    if isinstance(objective, TokenLabelConfig):
        return "Token labels" if objective.teacher is None else f"Token labels by {objective.teacher}, online"
    return f"Class labels and {objective.labels} labels by {objective.teacher}"


def describe_samples(objective: Objective) -> str:
    """What is drawn on the samples."""
    seen = "The first images of the epoch as they are augmented, before they are mixed and erased"
    if isinstance(objective, TokenLabelConfig) and objective.teacher is None:
        return (
            f"{seen}; beside each, the first class of every token's target, the surer the stronger. "
            "Below are the shares of the tokens; classes without a colour there are grey."
        )
    if isinstance(objective, ClassifyConfig) and objective.image_target != "class_label":
        return f"{seen}; below each, the classes that have {LEAST_SHARE:.0%} of its target or more."
    return f"{seen}."


def best_report(reports: Sequence[Report]) -> Report:
    """The epoch whose weights are kept as the best: of equals, the first."""
    return max(reports, key=lambda report: float(report["top1"]))


def figures(run: Run, reports: Sequence[Report]) -> list[Figure]:
    """The best of the run and what it cost."""
    last, shown = reports[-1], []
    if "top1" in last:
        best = best_report(reports)
        shown.append(Figure("Top-1", f"{best['top1']:.1%}", f"best, epoch {int(best['epoch']) + 1}"))
        if len(run.classes) > 5:
            shown.append(Figure("Top-5", f"{best['top5']:.1%}", "of the same epoch"))
        shown.append(Figure("Top-1 now", f"{last['top1']:.1%}", f"epoch {int(last['epoch']) + 1}"))
        training = number(float(last["train_loss"]))
        shown.append(Figure("Loss", number(float(last["loss"])), f"held-out; {training} in training"))
    else:
        shown.append(Figure("Training loss", number(float(last["train_loss"])), f"epoch {int(last['epoch']) + 1}"))
    parts = ("train_seconds", "evaluation_seconds")
    spent = sum(float(report.get(part, 0)) for report in reports for part in parts)
    shown.append(Figure("Time", duration(spent), "training and evaluation"))
    rate, waiting = float(last["images_per_second"]), whole_percent(float(last["data_wait"]))
    note = f"images a second; {waiting} of the time waiting for data"
    shown.append(Figure("Speed", f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}", note))
    return shown


LOSSES = {
    "train_loss": "training",
    "train_image": "of images",
    "train_token": "of tokens",
    "loss": "held-out images",
}
ACCURACIES = {"top1": "top-1", "top5": "top-5"}


def curves(run: Run, reports: Sequence[Report]) -> list[Markup]:
    """A chart for each kind of number."""
    losses, accuracies = dict(LOSSES), dict(ACCURACIES)
    if "train_token" not in reports[-1]:
        del losses["train_image"]  # the whole of it
    if len(run.classes) <= 5:
        del accuracies["top5"]
    charts = [line_chart("Loss", series_of(reports, losses))]
    if "top1" in reports[-1]:
        charts.insert(0, line_chart("Accuracy on held-out images", series_of(reports, accuracies), describe=percent))
    charts.append(line_chart("Learning rate", series_of(reports, {"rate": "learning rate"}), from_zero=True))
    length = series_of(reports, {"train_gradient": "mean over the epoch"})
    charts.append(line_chart("Length of the gradient", length, from_zero=True))
    return charts


def series_of(reports: Sequence[Report], names: Mapping[str, str]) -> list[Series]:
    """A line for each of the numbers that are reported, epochs counted from 1."""
    lines = []
    for key, name in names.items():
        points = [(float(report["epoch"]) + 1, float(report[key])) for report in reports if key in report]
        if points:
            x, y = zip(*points, strict=True)
            lines.append(Series(name, x, y))
    return lines


def evaluated(answers: Answers, samples: EvaluationSamples, classes: tuple[str, ...]) -> dict[str, object]:
    """What the last evaluation shows beyond its figures."""
    every = by_class(answers)
    numbers = sorted({*answers.truth.tolist(), *answers.first[:, 0].tolist()})
    few = len(numbers) <= MOST_IN_MATRIX
    names = [words_for(classes[one]) for one in numbers]
    worst = sorted(every, key=lambda one: (one.top1, one.number))
    pairs = [
        {"truth": words_for(classes[truth]), "taken": words_for(classes[taken]), "count": count}
        for truth, taken, count in confusions(answers)[:MOST_CONFUSIONS]
    ]
    return {
        "images": len(answers),
        "wrong": int((~answers.is_right()).sum()),
        "mistakes": mistakes_of(answers, samples, classes),
        "matrix": heat_map("Confusions", names, confusion_counts(answers, numbers).tolist()) if few else None,
        "confusions": pairs,
        "classes": len(every),
        "worst_classes": class_bars(worst if few else worst[:WORST_CLASSES], classes),
        "side_by_side": len(numbers) <= MOST_BESIDE or not few,
        "other_classes": None if few else class_bars(worst[WORST_CLASSES:], classes),
    }


def class_bars(figures: Sequence[ClassFigures], classes: tuple[str, ...]) -> Markup:
    """The accuracy of each class."""
    return bar_chart([Bar(words_for(classes[one.number]), one.top1, f"of {one.images:,}") for one in figures])


def commands(run: Run) -> list[tuple[str, str]]:
    """How the run was begun, and how to do the same again from its config."""
    told = run.environment.get("command")
    program, *arguments = [str(word) for word in told] if isinstance(told, list) and told else ["alltokens"]
    again = ["alltokens", "train", str(run.folder / "config.yaml"), "--folder", f"{run.folder}-again"]
    return [
        ("The run was begun with", shlex.join([Path(program).name, *arguments])),
        ("The same again, from its config", shlex.join(again)),
    ]
