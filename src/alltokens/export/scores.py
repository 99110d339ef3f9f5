"""The function that is exported, what is recorded beside it, and the check of what was written against it."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from alltokens.errors import UserError
from alltokens.files import write_atomically
from alltokens.models.config import ViTConfig
from alltokens.models.fold import fold
from alltokens.models.loading import names_of
from alltokens.models.usage import Usage, require_crop
from alltokens.models.vit import VisionTransformer
from alltokens.models.weights import Model
from alltokens.models.zoo import INTERPOLATION, MEAN, MODELS, STANDARD_DEVIATION, crop_ratio
from alltokens.shapes import Float

Answer = Callable[[Tensor], Tensor]
"""Images to scores."""

BATCHES = (1, 5)
"""Sizes of the batches that are compared; 1 is the one that tracing likes to take for a constant."""
TOLERANCE = 1e-4
"""Largest difference that rounding may cause, relative to the largest score where that is above 1."""


class Scores(nn.Module):
    """Evaluation scores of images; the weights are a copy with norms and gains folded in."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        copied: Model = fold(model) if isinstance(model, VisionTransformer) else deepcopy(model)
        self.model = copied.eval().requires_grad_(False)
        self.token_weight = model.config.token_weight

    def forward(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b k"]:
        return self.model(images).scores(self.token_weight)


@dataclass(frozen=True, kw_only=True)
class Record:
    """Which model it is, and how images are prepared for it."""

    model: str
    image_size: tuple[int, int]
    crop_ratio: float
    """Side of the evaluation crop over the shorter side of the resized image."""
    interpolation: str
    mean: tuple[float, ...]
    standard_deviation: tuple[float, ...]
    classes: tuple[str, ...] = ()
    """Names of its classes in the order of its scores, where they are known."""

    def __post_init__(self) -> None:
        require_crop(self.crop_ratio, "crop_ratio")

    def as_text(self) -> dict[str, str]:
        """Each value that is known as text, numbers as JSON, for formats that hold nothing else."""
        known = {key: value for key, value in asdict(self).items() if value != ()}
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in known.items()}


@dataclass(frozen=True)
class Written:
    """What came of an export."""

    difference: float
    """Largest difference from eager scores, relative to the largest of them where that is above 1."""
    notes: tuple[str, ...]
    """How to load it, and what was left out of it."""


def record(model: Model, name: str, ratio: float | None, usage: Usage | None = None) -> Record:
    """What goes with the model: its usage, or what is published; `ratio` replaces the crop ratio of either."""
    if usage is not None:
        return Record(
            model=name,
            image_size=model.config.image_size,
            crop_ratio=ratio if ratio is not None else usage.crop,
            interpolation=usage.interpolation,
            mean=usage.mean,
            standard_deviation=usage.std,
            classes=usage.classes,
        )
    if isinstance(model, VisionTransformer):
        return Record(
            model=name,
            image_size=model.config.image_size,
            crop_ratio=ratio if ratio is not None else known_crop_ratio(name, model.config),
            interpolation=INTERPOLATION,
            mean=MEAN,
            standard_deviation=STANDARD_DEVIATION,
        )
    data = resolve_model_data_config(model.model)
    return Record(
        model=name,
        image_size=model.config.image_size,
        crop_ratio=ratio if ratio is not None else data["crop_pct"],
        interpolation=data["interpolation"],
        mean=tuple(data["mean"]),
        standard_deviation=tuple(data["std"]),
    )


def known_crop_ratio(name: str, config: ViTConfig) -> float:
    """The crop ratio of the name, else of the first model with this config, else of all with this architecture."""
    alike = names_of(config)
    size, classes = config.image_size, config.classes
    equal = [other for other in alike if replace(MODELS[other], image_size=size, classes=classes) == config]
    ratios = {crop_ratio(other) for other in ([name] if name in alike else equal[:1] or alike)}
    if len(ratios) != 1:
        raise UserError(
            f"the crop ratio of '{name}' is not known, as its config is no published one; give --crop-ratio"
        )
    return ratios.pop()


def write_checked(
    path: Path,
    write: Callable[[BinaryIO], object],
    load: Callable[[str], Answer],
    model: Model,
    token_weight: float | None = None,
) -> float:
    """Write a file and check what is loaded back from it before it gets its name."""
    differences = []

    def write_and_check(file: BinaryIO) -> None:
        write(file)
        file.flush()
        differences.append(check(model, load(file.name), token_weight))

    with quiet():
        write_atomically(path, write_and_check)
    return differences[0]


@torch.no_grad()
def check(model: Model, answer: Answer, token_weight: float | None = None) -> float:
    """The largest difference of the answers from the model's own scores on random images; a large one is an error."""
    model.eval()
    config, differences = model.config, []
    for batch in BATCHES:
        generator = torch.Generator().manual_seed(batch)
        images = torch.randn(batch, config.channels, *config.image_size, generator=generator)
        scores = model(images).scores(config.token_weight if token_weight is None else token_weight)
        difference = (answer(images) - scores).abs().max() / scores.abs().max().clamp(min=1.0)
        # A NaN is no small difference.
        if not difference <= TOLERANCE:
            raise UserError(
                f"what was exported does not answer as the model does: for a batch of {batch} the scores differ by "
                f"{difference:.1e} of the largest, more than {TOLERANCE:.0e}; it was not kept"
            )
        differences.append(float(difference))
    return max(differences)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings and log lines of exporters, none of which the user can act on, off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
