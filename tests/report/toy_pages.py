"""Runs to make pages of, without training."""

import math
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import torch
from PIL import Image

from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.samples import EvaluationConfig, EvaluationSamples, TrainSamples
from alltokens.evaluate.classification import Answers
from alltokens.models.config import LinearStem, ViTConfig
from alltokens.objectives.classify import ClassifyConfig
from alltokens.report.run_page import Run
from alltokens.sources.source import Source

SIZE = (32, 32)


def toy_source(classes: Sequence[str], images: int, name: str = "data/photos") -> Source:
    """Images of one colour each, the classes in turns."""
    return Source(
        name=name,
        keys=[f"{index:04}.png" for index in range(images)],
        labels=[index % len(classes) for index in range(images)],
        classes=tuple(classes),
        load=lambda index: Image.new("RGB", (40, 36), (index % 256, 90, 160)),
    )


def toy_run(classes: Sequence[str], images: int = 40, epochs: int = 300, validation: bool = True) -> Run:
    """A run on class labels."""
    source = toy_source(classes, images)
    return Run(
        folder=Path("runs/toy"),
        model=ViTConfig(
            width=16, depth=2, heads=2, stem=LinearStem(patch=8), image_size=SIZE, classes=max(2, len(classes))
        ),
        grid=(4, 4),
        objective=ClassifyConfig(),
        train=TrainSamples(source, None, source.classes, AugmentConfig(), SIZE, seed=0),
        validation=EvaluationSamples(source, tuple(classes), EvaluationConfig(), SIZE) if validation else None,
        classes=tuple(classes),
        epochs=epochs,
        repeats=1,
        config="seed: 0\nbatch: 8\n",
        environment={"command": ["/usr/bin/alltokens", "train", "lvvit_s plain"], "torch": "2.15"},
    )


def toy_answers(run: Run) -> Answers:
    """Right about two images of three."""
    assert run.validation is not None
    truth = run.validation.classes
    count = len(run.classes)
    answered = torch.tensor([(own + (row % 3 == 0) * (1 + row % 5)) % count for row, own in enumerate(truth.tolist())])
    scores = 3 * torch.nn.functional.one_hot(answered, count) + torch.rand(
        len(truth), count, generator=torch.Generator().manual_seed(0)
    )
    return Answers.of(run.validation.source.keys, truth, scores)


def toy_reports(epochs: int, evaluated: bool = True) -> list[dict[str, int | float | str]]:
    """Curves as a run has them."""
    reports: list[dict[str, int | float | str]] = []
    for epoch in range(epochs):
        line: dict[str, int | float | str] = {
            "epoch": epoch,
            "step": 10 * (epoch + 1),
            "rate": 1e-3 * (1 + math.cos(math.pi * epoch / epochs)) / 2,
            "train_loss": 2 + 5 * math.exp(-epoch / 40) + 0.1 * math.sin(epoch),
            "train_image": 1 + 4 * math.exp(-epoch / 40),
            "train_gradient": 1.5 + math.sin(epoch) / 2,
            "train_seconds": 20.0,
            "images_per_second": 1234.5,
            "data_wait": 0.0312,
        }
        if evaluated:
            right = 0.8 - 0.7 * math.exp(-epoch / 50) + 0.01 * math.sin(epoch)
            line |= {"top1": right, "top5": (1 + right) / 2, "loss": 6 * (1 - right), "evaluation_seconds": 4.0}
        reports.append(line)
    return reports


class Parsed(HTMLParser):
    """What a browser would find on a page: its tags with attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.pieces: list[str] = []
        self.feed(str(page))  # markup would escape what is joined to it
        self.close()
        self.text = " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    def named(self, tag: str, of_class: str = "") -> list[dict[str, str]]:
        """Attributes of each such tag."""
        return [
            found
            for name, found in self.tags
            if name == tag and (not of_class or of_class in found.get("class", "").split())
        ]
