"""Whole configs for a data set of one's own, by its size: an annotator for its classes, and LV-ViT on token labels.

All values here are ours. Without a GPU they are such that a few hundred images come through in a few minutes on two
cores, which rules out larger models, sizes and numbers of epochs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

from alltokens.annotate.annotator import Annotator, open_annotator
from alltokens.annotate.class_map import normal, spellings_of
from alltokens.annotate.pip_weights import PIP_MODELS
from alltokens.augment.finish import FinishConfig
from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.samples import EvaluationConfig
from alltokens.errors import require
from alltokens.models.config import ViTConfig
from alltokens.models.factory import TIMM
from alltokens.models.families import lvvit
from alltokens.models.timm_model import published, timm_config
from alltokens.models.zoo import find
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.sources.decode import Unreadable
from alltokens.sources.source import Source
from alltokens.train.average import AverageConfig
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.optimizer import OptimizerConfig
from alltokens.train.run_folder import weights_of_run
from alltokens.train.schedule import ScheduleConfig
from alltokens.train.usage import usage_of_run

LOOKED_AT = 32
"""Images whose sizes are looked at."""
LARGEST_SIDE, LARGEST_SIDE_ON_CPU, SMALLEST_SIDE, PATCH = 224, 128, 64, 16
FEW, MANY = 2_000, 100_000
"""Images below which a smaller model than LV-ViT-T is trained, and from which on LV-ViT-S, by its own recipe."""


@dataclass(frozen=True)
class Extent:
    """What the defaults depend on."""

    images: int
    """To train on."""
    classes: int
    """Of the data set."""
    shorter_side: int
    """Of the images in pixels, the median."""
    on_gpu: bool


def extent_of(source: Source, on_gpu: bool) -> Extent:
    """Of the images to train on, some of which are opened for their size."""
    sides, reason = [], ""
    for row in range(0, len(source), max(1, len(source) // LOOKED_AT)):
        try:
            sides.append(min(source.image(row).size))
        except Unreadable as error:
            reason = f"such as '{source.keys[row]}' ({error})"
    require(bool(sides), f"none of the images of '{source.name}' that were tried can be read, {reason}")
    return Extent(len(source), len(source.classes), int(median(sides)), on_gpu)


def annotator_config(
    data: DataConfig, network: str, extent: Extent, initial: str | None = None, epochs: int | None = None
) -> TrainConfig:
    """A classifier of timm's (`timm/NAME`, or `pip/NAME` for the same network) on plain labels, to annotate with.

    No mixing, colours or erasing: its maps are to say what is where in ordinary images. Images are normalised as timm
    publishes of the network. From weights (`initial`) a quarter of the epochs, at a quarter of the rate, will do.
    """
    timm_name = PIP_MODELS.get(network, network.removeprefix(TIMM))
    require(
        network in PIP_MODELS or network.startswith(TIMM),
        f"the annotator's network must be {TIMM}NAME or one of {', '.join(PIP_MODELS)}; got '{network}'",
    )
    known, own = published(timm_name), timm_config(timm_name)
    height, width = (side if extent.on_gpu else min(side, LARGEST_SIDE_ON_CPU) for side in own.image_size)
    batch = batch_for(extent.images, 64 if extent.on_gpu else 16)
    if epochs is None:
        epochs = epochs_for(extent.images, 100_000 if extent.on_gpu else 2_400, fewest=4, most=12)
        epochs = epochs if initial is not None else 4 * epochs
    mean, std, interpolation = cast(Any, (known.mean, known.std, known.interpolation))
    return TrainConfig(
        model=replace(own, classes=extent.classes, image_size=(height, width), token_head=False),
        data=replace(data, labels=None),
        initial=initial,
        objective=ClassifyConfig(mix=MixConfig(kind="none"), finish=FinishConfig(mean=mean, std=std, erase=0.0)),
        augment=AugmentConfig(scale=(0.25, 1.0), policy=None, mean=mean),
        evaluation=EvaluationConfig(crop=known.crop_pct, interpolation=interpolation),
        optimizer=OptimizerConfig(learning_rate=5e-4 if initial is not None else 2e-3, reference_batch=None),
        schedule=ScheduleConfig(epochs=epochs, warmup_epochs=epochs / 10),
        average=None,
        batch=batch,
        precision="bf16" if extent.on_gpu else "float32",
    )


def annotator_of_run(run: Path, size: int | None = None) -> Annotator:
    """A run's best model, with the names of its classes, and with images prepared as in its training."""
    usage = usage_of_run(run)
    annotator = open_annotator(str(weights_of_run(run, "best")), size=size)
    return replace(
        annotator,
        name=str(run),
        classes=usage.classes,
        mean=usage.mean,
        std=usage.std,
        interpolation=usage.interpolation,
    )


def token_label_config(data: DataConfig, extent: Extent, classes: int) -> TrainConfig:
    """LV-ViT on the token labels of a store with so many classes; the image has its class label (TL, eq. 3)."""
    side = side_for(extent)
    batch = batch_for(extent.images, 256 if extent.on_gpu else 32)
    most, seen = (300, 6_000_000) if extent.on_gpu else (60, 12_000)
    epochs = epochs_for(extent.images, seen, fewest=4, most=most)
    steps = epochs * (extent.images // batch)
    return TrainConfig(
        model=replace(model_for(extent), classes=classes, image_size=(side, side)),
        data=data,
        objective=TokenLabelConfig(finish=FinishConfig(erase=0.0 if is_short(extent) else 0.25)),
        augment=augmentation_for(extent),
        evaluation=EvaluationConfig(crop=0.9),
        optimizer=OptimizerConfig(learning_rate=1e-3 if batch >= 128 else 5e-4, reference_batch=None),
        schedule=ScheduleConfig(epochs=epochs, warmup_epochs=min(5.0, epochs / 10)),
        # It looks back on about a thirtieth of the run.
        average=AverageConfig(decay=round(max(0.9, min(0.9999, 1 - 30 / steps)), 4), reference_batch=None, warmup=True),
        batch=batch,
        precision="bf16" if extent.on_gpu else "float32",
    )


def model_for(extent: Extent) -> ViTConfig:
    """LV-ViT-T for most, S for many images, and a smaller one for few images or none but a CPU."""
    if extent.images < FEW or not extent.on_gpu:
        return lvvit(192, 6, 4, stem_channels=32, drop_path=0.0)
    return find("lvvit_t" if extent.images < MANY else "lvvit_s")


def side_for(extent: Extent) -> int:
    """Pixels of the square that the model sees: as many as the images have, within bounds, in whole tokens."""
    largest = LARGEST_SIDE if extent.on_gpu else LARGEST_SIDE_ON_CPU
    return max(SMALLEST_SIDE, min(largest, extent.shorter_side // PATCH * PATCH))


def augmentation_for(extent: Extent) -> AugmentConfig:
    """Crops, flips and colours, without a GPU larger crops and flips alone, and RandAugment where there is time."""
    if not is_short(extent):
        return AugmentConfig()
    if extent.on_gpu:
        return AugmentConfig(policy=None, color_jitter=0.4)
    return AugmentConfig(scale=(0.25, 1.0), policy=None)


def is_short(extent: Extent) -> bool:
    """Whether a run has no time for strong changes of its images: on 7,501 photos they cost LV-ViT-T 1 to 3 points."""
    return extent.images < MANY or not extent.on_gpu


def batch_for(images: int, most: int) -> int:
    """Images of a step: an epoch of few images still has four steps, where steps of two images allow it."""
    batch = most
    while batch > 2 and images < 4 * batch:
        batch //= 2
    return batch


def epochs_for(images: int, seen: int, fewest: int, most: int) -> int:
    """As many as it takes to see so many images, within bounds."""
    return max(fewest, min(most, round(seen / images)))


def named_like(folders: Sequence[str], classes: Sequence[str]) -> tuple[str, ...] | None:
    """An annotator's classes, those under the folders' names that the folders are of; None unless it knows them all.

    Folders may have the annotator's own names, WordNet ids, or words of these; a number says nothing.
    """
    spellings = spellings_of(classes)
    chosen: dict[int, str] = {}
    for folder in folders:
        meant = set() if folder.isdigit() else spellings.get(normal(folder.replace("_", " ")), set())
        if len(meant) != 1 or meant & chosen.keys():
            return None
        chosen[next(iter(meant))] = folder
    return tuple(chosen.get(number, name) for number, name in enumerate(classes))
