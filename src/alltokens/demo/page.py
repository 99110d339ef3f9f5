"""The demo's page: which labels came to what, what the tokens were told, and a real annotator on real photos."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from alltokens import __version__
from alltokens.annotate.annotator import open_annotator
from alltokens.annotate.canvas import Canvas
from alltokens.annotate.class_map import describe_class
from alltokens.annotate.pip_weights import is_installed
from alltokens.demo.configs import Labels
from alltokens.demo.run import ANNOTATOR, run_folder, top1
from alltokens.explain.label_maps import draw_score_map
from alltokens.labels.score_map import ScoreMap
from alltokens.models.config import ViTConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.report.charts import Series, line_chart, percent
from alltokens.report.page import render
from alltokens.report.pictures import data_uri, shown
from alltokens.report.run_page import Figure
from alltokens.report.samples import training_pictures
from alltokens.sources.decode import tensor_of
from alltokens.sources.source import Source
from alltokens.train.journal import read_reports
from alltokens.train.run_folder import CONFIG, METRICS, read_config
from alltokens.train.trainer import open_data

PHOTO_ANNOTATOR = "pip/efficientnet_lite0"
SHOWN_SCENES = 6
PHOTO_SIDE = 448
"""Twice the annotator's own size: finer maps."""


@dataclass(frozen=True)
class Captioned:
    """A picture and what it is of."""

    name: str
    image: str


def demo_page(folder: Path, kinds: Sequence[Labels], verdict: str) -> str:
    """After all runs."""
    accuracies = {kind: top1(run_folder(folder, kind)) for kind in kinds}
    annotator = top1(folder / ANNOTATOR)
    curves = []
    for kind in kinds:
        reports = read_reports(run_folder(folder, kind) / METRICS)
        epochs = [int(report["epoch"]) + 1 for report in reports]
        curves.append(Series(kind, epochs, [float(report["top1"]) for report in reports]))
    config = read_config(run_folder(folder, "token labels") / CONFIG)
    data = open_data(config)
    assert isinstance(config.objective, TokenLabelConfig)
    assert isinstance(config.model, ViTConfig)
    return render(
        "demo.html.jinja",
        {
            "title": "Every token has its label",
            "verdict": verdict,
            "figures": [
                *(Figure(kind, percent(accuracy), "top-1, held out") for kind, accuracy in accuracies.items()),
                Figure("annotator", percent(annotator), "top-1, held out"),
            ],
            "scenes": scenes(data.train.source),
            "curve": line_chart("Top-1 of held-out scenes", curves, describe=percent, from_zero=True),
            "samples": training_pictures(data.train, config.objective, config.model.grid, data.classes, 0),
            "photos": photos() if is_installed(PHOTO_ANNOTATOR) else [],
            "photo_annotator": PHOTO_ANNOTATOR,
            "runs": [str(run_folder(folder, kind)) for kind in kinds] + [str(folder / ANNOTATOR)],
            "version": __version__,
        },
    )


def scenes(source: Source) -> list[Captioned]:
    """Some from all over the data set, whole."""
    rows = range(0, len(source), max(1, len(source) // SHOWN_SCENES))[:SHOWN_SCENES]
    return [Captioned(source.classes[source.labels[row]], data_uri(shown(source.image(row)))) for row in rows]


@torch.inference_mode()
def photos() -> list[Captioned]:
    """The photos that come with scikit-learn, under the maps of an annotator that knows ImageNet."""
    from sklearn.datasets import load_sample_image

    annotator = open_annotator(PHOTO_ANNOTATOR, size=PHOTO_SIDE)
    canvas = Canvas("square", annotator.image_size, annotator.stride, annotator.interpolation)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (annotator.mean, annotator.std))
    found = []
    for name in ("flower.jpg", "china.jpg"):
        image = Image.fromarray(load_sample_image(name))
        logits = annotator.module(((canvas.show(tensor_of(image)) / 255 - mean) / std)[None])[0]
        score_map = ScoreMap.from_dense(logits, top_k=5)
        drawn = draw_score_map(image, score_map, lambda number: describe_class(annotator.classes[number]))
        found.append(Captioned(name, data_uri(drawn)))
    return found
