"""What the demo trains, all values ours: two cores are done in minutes, and each kind of labels has its best rate."""

from dataclasses import dataclass, replace
from typing import Literal

from alltokens.augment.finish import FinishConfig
from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.samples import EvaluationConfig
from alltokens.demo.scenes import SIDE
from alltokens.models.config import ConvStem, ViTConfig
from alltokens.models.timm_model import TimmConfig
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.train.average import AverageConfig
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.optimizer import OptimizerConfig
from alltokens.train.schedule import ScheduleConfig

Labels = Literal["plain labels", "plain labels, not mixed", "ReLabel", "token labels"]
CLASSES = 10
SIZE = (SIDE, SIDE)
RATES: dict[Labels, float] = {
    "plain labels": 5e-4,
    "plain labels, not mixed": 5e-4,
    "ReLabel": 1e-3,
    "token labels": 1e-3,
}
"""For plain labels 3e-4 does as well and 1e-3 worse; for token labels 7e-4 and 2e-3 do worse."""
FINISH = FinishConfig(erase=0.0)


@dataclass(frozen=True)
class Extent:
    """How much there is to see, and how often it is seen."""

    scenes: int = 6_000
    held_out: int = 1_000
    annotator_epochs: int = 3
    epochs: int = 7


def annotator_config(data: DataConfig, extent: Extent, seed: int) -> TrainConfig:
    """A small CNN with a cell for each of the transformer's tokens."""
    model = TimmConfig(name="test_resnet", classes=CLASSES, image_size=SIZE, output_stride=8, token_head=False)
    objective = ClassifyConfig(smoothing=0.0, mix=MixConfig(kind="none"), finish=FINISH)
    config = shared(data, model, objective, seed)
    return replace(
        config,
        optimizer=replace(config.optimizer, learning_rate=5e-3),
        schedule=replace(config.schedule, epochs=extent.annotator_epochs),
        batch=16,
    )


def transformer_config(labels: Labels, data: DataConfig, extent: Extent, seed: int) -> TrainConfig:
    """A small LV-ViT: 6 x 6 tokens, convolutions before the transformer, a head for every token that has labels."""
    model = ViTConfig(
        width=80,
        depth=4,
        heads=4,
        stem=ConvStem(channels=48, kernels=(3, 3, 3, 3), strides=(2, 2, 1, 2)),
        image_size=SIZE,
        classes=CLASSES,
        token_head=labels == "token labels",
    )
    config = shared(data, model, objective_of(labels), seed)
    return replace(
        config,
        optimizer=replace(config.optimizer, learning_rate=RATES[labels]),
        schedule=replace(config.schedule, epochs=extent.epochs),
    )


def objective_of(labels: Labels) -> TokenLabelConfig | ClassifyConfig:
    """MixToken for all but one; tokens count twice as much as the image, because the run is so short."""
    mix = MixConfig(kind="token")
    match labels:
        case "token labels":
            return TokenLabelConfig(beta=2.0, mix=mix, finish=FINISH)
        case "ReLabel":
            return ClassifyConfig(image_target="score_map", mix=mix, finish=FINISH)
        case "plain labels":
            return ClassifyConfig(mix=mix, finish=FINISH)
        case "plain labels, not mixed":
            return ClassifyConfig(mix=MixConfig(kind="none"), finish=FINISH)


def shared(
    data: DataConfig, model: ViTConfig | TimmConfig, objective: TokenLabelConfig | ClassifyConfig, seed: int
) -> TrainConfig:
    """What is the same for all: crops, but no flips, which would make other digits of some."""
    return TrainConfig(
        model=model,
        data=data,
        objective=objective,
        augment=AugmentConfig(scale=(0.6, 1.0), hflip=0.0, policy=None),
        evaluation=EvaluationConfig(crop=1.0),
        optimizer=OptimizerConfig(reference_batch=None),
        schedule=ScheduleConfig(epochs=1, warmup_epochs=0.9, final_rate=1e-6),
        average=AverageConfig(decay=0.99, reference_batch=None),
        batch=24,
        precision="float32",
        seed=seed,
    )
