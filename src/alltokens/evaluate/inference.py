"""A trained model asked about images: what predicting and evaluating share."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from alltokens.annotate.write import Machine
from alltokens.augment.finish import FinishConfig
from alltokens.data.batch import Batch, Sample
from alltokens.data.loader import evaluation_batches
from alltokens.data.order import Share
from alltokens.data.samples import EvaluationConfig, EvaluationSamples
from alltokens.errors import require
from alltokens.evaluate.classification import Answers, scores_by_rule
from alltokens.evaluate.imagenet import RealFigures, real_figures
from alltokens.labels.store import the_first
from alltokens.models.loading import load
from alltokens.models.prediction import Prediction
from alltokens.models.weights import Model, WeightFile
from alltokens.objectives.classify import evaluate
from alltokens.progress import Report
from alltokens.sources.decode import Unreadable
from alltokens.sources.source import Source

PICTURES = 32
"""Pictures that are asked about at once."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A model in evaluation mode, and how it wants its images."""

    name: str
    """As the user gave it."""
    model: Model
    classes: tuple[str, ...]
    """Names of the model's classes."""
    evaluation: EvaluationConfig
    finish: FinishConfig

    def __post_init__(self) -> None:
        config = self.model.config
        require(config.channels == 3, f"'{self.name}' takes images of {config.channels} channels; photos have 3")
        require(
            len(self.classes) == config.classes,
            f"'{self.name}' has {config.classes} classes, and the run that it lies in names {len(self.classes)}",
        )

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that the model sees."""
        return self.model.config.image_size

    def require_tokens(self, token_weight: float | None) -> None:
        """Raise where a weight is given for tokens that are not there."""
        require(
            token_weight is None or self.model.token_head is not None,
            f"--token-weight needs a model with a token head; got --token-weight {token_weight} and '{self.name}', "
            "which has none",
        )
        require(token_weight is None or token_weight >= 0, f"--token-weight must be at least 0; got {token_weight}")

    def ask(self, batch: Batch, device: torch.device) -> Prediction:
        """Its answer, in bf16 on a GPU."""
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return evaluate(self.model, batch.to(device), self.finish)


def resized(model: Model, size: int) -> Model:
    """The same model for squares of this side, positions resampled."""
    file = WeightFile(Path(), model.state_dict(), model.config)
    return load(file, replace(model.config, image_size=(size, size)), "its own config")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model answered on a data set."""

    answers: dict[str, Answers]
    """For images that have a class, by the rule that makes scores of image and token logits."""
    unreadable: tuple[str, ...]
    """Keys of images that could not be read."""
    without_class: int
    """Images that have no class, and so no right answer."""
    real: RealFigures | None
    """None where there are no ReaL labels to compare with."""


def evaluate_source(
    trained: Trained,
    source: Source,
    token_weight: float,
    machine: Machine,
    report: Report,
    real: Mapping[str, Set[int]] | None = None,
) -> Evaluation:
    """Ask the model about every image that has a class; with ReaL labels about all, as these need no class."""
    if real is not None and set(source.classes).isdisjoint(trained.classes):
        source = replace(source, labels=[-1] * len(source), classes=())
    samples = EvaluationSamples(source, trained.classes, trained.evaluation, trained.image_size)
    require(
        real is not None or bool((samples.classes >= 0).any()),
        f"no image of '{source.name}' has a class; put each into a folder with the name of its class",
    )
    trained.model.to(machine.device)
    parts: dict[str, list[Answers]] = {}
    unreadable: list[str] = []
    without_class, done = 0, 0
    share = Share(batch=machine.batch, drop_last=False)
    for batch in evaluation_batches(samples, share, machine.workers, machine.device):
        known = batch.classes >= 0
        if known.any() or (real is not None and len(batch)):
            for rule, scores in scores_by_rule(trained.ask(batch, machine.device), token_weight).items():
                parts.setdefault(rule, []).append(Answers.of(batch.keys, batch.classes, scores))
        unreadable += batch.skipped
        without_class += int((~known).sum())
        done += len(batch) + len(batch.skipped)
        report(done, len(source))
    wanted = " that has a class" if real is None else ""
    require(bool(parts), f"no image of '{source.name}'{wanted} can be read, {the_first(unreadable)}")
    joined = {rule: Answers.join(several) for rule, several in parts.items()}
    return Evaluation(
        answers={rule: answers.with_class() for rule, answers in joined.items()},
        unreadable=tuple(unreadable),
        without_class=without_class,
        real=None if real is None else real_figures(real, joined),
    )


@dataclass(frozen=True)
class Predicted:
    """What a model answered for some pictures."""

    rule: str
    """How scores are made of image and token logits."""
    answers: dict[str, list[tuple[int, float]]]
    """Classes and their probabilities for each picture, the most likely first."""
    unreadable: dict[str, str]
    """Why the other pictures could not be read."""


def predict_pictures(
    trained: Trained,
    pictures: Mapping[str, Callable[[], Sample]],
    token_weight: float,
    top: int,
    device: torch.device,
    report: Report,
) -> Predicted:
    """The first answers for each picture."""
    trained.model.to(device)
    rule = ""
    answers: dict[str, list[tuple[int, float]]] = {}
    unreadable: dict[str, str] = {}
    names = list(pictures)
    for start in range(0, len(names), PICTURES):
        samples = []
        for name in names[start : start + PICTURES]:
            try:
                samples.append(replace(pictures[name](), key=name))
            except Unreadable as error:
                unreadable[name] = str(error)
        if samples:
            batch = Batch.of(samples, trained.image_size, None, ())
            *_, (rule, scores) = scores_by_rule(trained.ask(batch, device), token_weight).items()
            certainty, first = scores.float().softmax(1).topk(min(top, scores.shape[1]))
            pairs = zip(batch.keys, first.tolist(), certainty.tolist(), strict=True)
            answers |= {key: list(zip(classes, shares, strict=True)) for key, classes, shares in pairs}
        report(min(start + PICTURES, len(names)), len(names))
    return Predicted(rule, answers, unreadable)
