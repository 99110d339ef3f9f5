"""Networks that answer while another is trained: frozen, and held beside an objective so that nothing saves them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from alltokens.annotate.annotator import Annotator, normalization, open_annotator, timm_weights
from alltokens.annotate.class_map import class_names
from alltokens.annotate.pip_weights import PIP_MODELS, read_pip_weights
from alltokens.annotate.presets import PRESETS
from alltokens.augment.finish import FinishConfig
from alltokens.errors import UserError, by, require
from alltokens.labels.score_map import ScoreMaps
from alltokens.labels.sparse_loss import wide
from alltokens.labels.store import the_first
from alltokens.models.config import ViTConfig
from alltokens.models.convert import HEADS
from alltokens.models.factory import TIMM
from alltokens.models.loading import classifier_names, is_ours, load, stored_classes
from alltokens.models.timm_model import timm_config
from alltokens.models.usage import Channels
from alltokens.models.weights import Model, ModelConfig, WeightFile, read_weights
from alltokens.models.zoo import MODELS, find
from alltokens.objectives.finishing import normalize
from alltokens.shapes import Float, UInt8

TOP = 5
"""Classes of a cell that are kept, as many as a label store usually has."""


@dataclass(frozen=True)
class Teacher:
    """A classifier, and how it wants its images; no module, so that an objective that has it does not register it."""

    name: str
    model: Model
    """In evaluation mode, without gradients."""
    mean: Channels
    std: Channels

    def answer(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b k"]:
        """Its scores by its own evaluation rule."""
        with torch.no_grad():
            images = images.to(next(self.model.parameters()).dtype)
            return self.model(images).scores(self.model.config.token_weight)


def open_teacher(name: str, weights: str | None, image_size: tuple[int, int]) -> Teacher:
    """A classifier of timm's, of pip or ours, by its name or from a file of ours, for images of the student's size."""
    with sentences_of_teachers():
        file, config = weights_of(name, weights)
    config = replace(config, classes=stored_classes(file, config), image_size=image_size)
    require_classifier(file, config)
    return Teacher(name, load(file, config, name).float().eval().requires_grad_(False), *normalization(file, config))


def weights_of(name: str, weights: str | None) -> tuple[WeightFile, ModelConfig]:
    """What is loaded, and into what."""
    if name.startswith(TIMM) or name in PRESETS:
        timm_name = PRESETS[name].timm_name if name in PRESETS else name.removeprefix(TIMM)
        file, config = timm_weights(timm_name, None if weights is None else Path(weights)), timm_config(timm_name)
        return file, file.config or replace(config, token_head=False)
    if name in MODELS:
        require(weights is not None, f"no weights come with '{name}'; give a weight file of it with teacher_weights")
        file = read_weights(cast(str, weights))
        return file, file.config or find(name)
    require(weights is None, f"'{name}' has weights itself; leave out teacher_weights, got '{weights}'")
    if name in PIP_MODELS:
        return read_pip_weights(name), replace(timm_config(PIP_MODELS[name]), token_head=False)
    file = read_weights(name)
    if file.config is None:
        raise UserError(
            f"'{name}' does not say which model it is; name the model as the teacher, such as {TIMM}resnet50, and give "
            "the file with teacher_weights"
        )
    return file, file.config


def classes_of_teacher(name: str, weights: str | None, data: Sequence[str]) -> tuple[str, ...]:
    """Names of its classes, which must have all of the data's, where its file says them.

    Otherwise the data's where it has as many, and ImageNet's for a thousand, whatever part the data has.
    """
    with sentences_of_teachers():
        file, config = weights_of(name, weights)
    if file.usage is not None:
        require_known(name, file.usage.classes, data)
        return file.usage.classes
    count = stored_classes(file, config)
    return tuple(data) if count == len(data) else class_names(count)


def require_known(name: str, known: Sequence[str], data: Sequence[str]) -> None:
    """Raise where the data has a class that the teacher has none of that name for."""
    names = set(known)
    missing = next((label for label in data if label not in names), None)
    require(
        missing is None,
        f"the teacher '{name}' does not know the data's class '{missing}' by its name; it has {len(known):,} classes, "
        f"{the_first(known)}",
    )


@contextmanager
def sentences_of_teachers() -> Iterator[None]:
    """Annotators have their weights from a flag of the command line, teachers from a field beside their name."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace("--checkpoint", "teacher_weights")) from error


def require_classifier(file: WeightFile, config: ModelConfig) -> None:
    """Refuse a file without the heads that answer, which loading would draw at random."""
    if isinstance(config, ViTConfig):
        ours = is_ours(file.state)
        heads = [head if ours else HEADS[head] for head in config.prediction_heads]
    else:
        prefix = "" if file.config is None else "model."
        heads = [f"{prefix}{head}" for head in classifier_names(config)]
    missing = [head for head in heads if f"{head}.weight" not in file.state]
    require(not missing, f"'{file.path}' has no {''.join(missing[:1])}.weight, without which it answers at random")


def open_online_annotator(name: str, weights: str | None, image_size: tuple[int, int]) -> Annotator:
    """An annotator that is shown what the student is shown."""
    with sentences_of_teachers():
        annotator = open_annotator(name, None if weights is None else Path(weights), image_size[0])
    require(
        annotator.any_size or image_size[0] == image_size[1],
        f"'{name}' sees squares alone; got images of {by(image_size)}, train on squares or with another teacher",
    )
    return annotator


def maps_of_views(annotator: Annotator, images: UInt8[Tensor, "b 3 h w"]) -> ScoreMaps:
    """What it says of each image as it is augmented, not yet mixed or erased; the map has all of the view."""
    pixels = normalize(images, FinishConfig(mean=annotator.mean, std=annotator.std, erase=0.0))
    with torch.no_grad():
        logits = annotator.module(pixels.to(next(annotator.module.parameters()).dtype))
        logits = logits.to(wide(logits))
        (b, k, h, w), device = logits.shape, logits.device
        top, classes = logits.topk(min(TOP, k), 1)
        # Made on the device: a step copies nothing to it.
        grids = torch.stack([torch.full((b,), side, device=device) for side in (h, w)], 1)
        views = torch.eye(2, 3, dtype=logits.dtype, device=device).expand(b, 2, 3)
        return ScoreMaps(classes, top, logits.logsumexp(1), views, grids)


def require_same_classes(name: str, teacher: int, student: int) -> None:
    """Raise unless both count classes alike."""
    require(
        teacher == student,
        f"the teacher must have the model's {student} classes; '{name}' has {teacher}",
    )
