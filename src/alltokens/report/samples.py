"""Pictures of a run for its page: what it trains on, with the targets drawn on it, and what it gets wrong."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from PIL import Image

from alltokens.annotate.class_map import describe_class
from alltokens.data.batch import Batch
from alltokens.data.order import epoch_order
from alltokens.data.samples import EvaluationSamples, TrainSamples
from alltokens.errors import UserError
from alltokens.evaluate.classification import Answers, worst_mistakes
from alltokens.explain.label_maps import Colour
from alltokens.explain.target_maps import draw_targets, shared_colours, target_maps
from alltokens.labels.align import image_targets, token_targets
from alltokens.objectives.classify import ClassifyConfig, require_maps, whole_view
from alltokens.objectives.distill import DistillConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.report.pictures import data_uri, picture_of
from alltokens.sources.decode import Unreadable

SAMPLES, MISTAKES = 9, 12
"""Pictures of each kind on a page."""
LEGEND = 4
"""Classes that are named under a picture."""
LEAST_SHARE = 0.02
"""Of an image's target, for a class to be named."""


@dataclass(frozen=True)
class LegendLine:
    """A class of a picture's targets."""

    colour: str
    """As CSS writes it; empty where the class has none."""
    name: str
    share: float


@dataclass(frozen=True)
class TrainingPicture:
    """A training image as the model sees it."""

    key: str
    name: str
    """Of its class."""
    image: str
    drawn: str
    """The same under its tokens' targets; empty where tokens have none."""
    legend: tuple[LegendLine, ...]


@dataclass(frozen=True)
class Mistake:
    """An image that was taken for something else."""

    key: str
    image: str
    """Empty where it cannot be read any more."""
    truth: str
    answer: str
    certainty: float
    """Of the answer."""
    loss: float


Objective = TokenLabelConfig | ClassifyConfig | DistillConfig
Legend = tuple[LegendLine, ...]


def training_pictures(
    samples: TrainSamples,
    objective: Objective,
    grid: tuple[int, int],
    classes: tuple[str, ...],
    epoch: int,
    repeats: int = 1,
) -> list[TrainingPicture]:
    """The first samples of an epoch, made once more, for they are functions of their places; none if unreadable.

    They are not yet mixed and erased, which happens on the device.
    """
    order = epoch_order(len(samples.source), samples.seed, epoch, repeats)
    try:
        batch = samples.batch(epoch, order, range(min(SAMPLES, len(order))))
    except UserError:
        return []
    images = [picture_of(pixels) for pixels in batch.images]
    if isinstance(objective, TokenLabelConfig) and objective.teacher is None:
        overlays = token_overlays(batch, images, objective, grid, classes)
    elif isinstance(objective, ClassifyConfig) and objective.image_target != "class_label":
        overlays = [("", legend) for legend in image_legends(batch, objective, classes)]
    else:
        overlays = [("", ())] * len(images)
    return [
        TrainingPicture(key, words_for(classes[number]), data_uri(image), drawn, legend)
        for key, number, image, (drawn, legend) in zip(
            batch.keys, batch.classes.tolist(), images, overlays, strict=True
        )
    ]


def token_overlays(
    batch: Batch,
    images: Sequence[Image.Image],
    objective: TokenLabelConfig,
    grid: tuple[int, int],
    classes: tuple[str, ...],
) -> list[tuple[str, Legend]]:
    """Each image under the targets that its tokens are compared with, and which colour is which class."""
    maps = require_maps(batch.score_maps)
    targets = token_targets(maps, batch.views, grid, len(classes), objective.rule, objective.smoothing)
    drawn = target_maps(targets, grid)
    colours = shared_colours(drawn)
    return [
        (
            data_uri(draw_targets(image, one, colours, LEGEND)),
            tuple(
                LegendLine(css(colours[number]), words_for(classes[number]), share)
                for number, share in one.shares()[:LEGEND]
            ),
        )
        for image, one in zip(images, drawn, strict=True)
    ]


def image_legends(batch: Batch, objective: ClassifyConfig, classes: tuple[str, ...]) -> list[Legend]:
    """The first classes of the target that each image is compared with as a whole."""
    rule, choice = objective.rule or "zero_fill", objective.image_target
    whole = whole_view(batch.score_maps, batch.views, len(classes), choice, rule)
    targets = image_targets(batch.classes, len(classes), choice, whole, objective.smoothing)
    shares, numbers = targets.topk(min(LEGEND, len(classes)))
    return [
        tuple(
            LegendLine("", words_for(classes[number]), share)
            for share, number in zip(own_shares, own_numbers, strict=True)
            if share >= LEAST_SHARE
        )
        for own_shares, own_numbers in zip(shares.tolist(), numbers.tolist(), strict=True)
    ]


def mistakes_of(answers: Answers, samples: EvaluationSamples, classes: tuple[str, ...]) -> list[Mistake]:
    """The worst ones, with what the model saw."""
    worst = worst_mistakes(answers, MISTAKES)
    indices = indices_of({answers.keys[place] for place in worst}, samples.source.keys)
    return [
        Mistake(
            key=answers.keys[place],
            image=evaluation_picture(samples, indices[answers.keys[place]]),
            truth=words_for(classes[int(answers.truth[place])]),
            answer=words_for(classes[int(answers.first[place, 0])]),
            certainty=float(answers.certainty[place, 0]),
            loss=float(answers.loss[place]),
        )
        for place in worst
    ]


def indices_of(wanted: Set[str], keys: Sequence[str]) -> dict[str, int]:
    """Where in the source some images lie; a look-up of all keys would take more memory than it is worth."""
    return {key: index for index, key in enumerate(keys) if key in wanted}


def evaluation_picture(samples: EvaluationSamples, index: int) -> str:
    """What the model saw of an image; nothing where it cannot be read any more."""
    try:
        return data_uri(picture_of(samples.sample(index).image))
    except Unreadable:
        return ""


def words_for(name: str) -> str:
    """The first of the words for a WordNet id, or the name."""
    words = describe_class(name)
    return words if words == name else words.split(",")[0]


def css(colour: Colour) -> str:
    """`rgb(1, 2, 3)`."""
    return f"rgb{colour}"
