"""LV-ViT under the three kinds of supervision of the token labeling paper (TL-supp, Table 1)."""

from dataclasses import replace
from typing import Literal

from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.samples import EvaluationConfig
from alltokens.models.zoo import crop_ratio, find
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.optimizer import OptimizerConfig

Size = Literal["t", "s", "m", "l"]


def token_labels(size: Size, data: DataConfig) -> TrainConfig:
    """Every token has its label; top-1 at 224: T 79.1, S 83.3, M 84.1 (TL, Table 6 and the release), L 85.3 at 288.

    The learning rate is 1e-3 at a batch of 640, where the other kinds of supervision have 1024.
    """
    return lvvit(size, data, TokenLabelConfig(), reference_batch=640)


def relabel(size: Size, data: DataConfig) -> TrainConfig:
    """The image alone is compared, with its score map; no Mixup, as the table's caption says."""
    objective = ClassifyConfig(image_target="score_map", mix=MixConfig(kind="cutmix"))
    return lvvit(size, data, objective, reference_batch=1024)


def plain_labels(size: Size, data: DataConfig) -> TrainConfig:
    """Class labels, with Mixup 0.8 and CutMix in turns."""
    return lvvit(size, data, ClassifyConfig(), reference_batch=1024)


def lvvit(
    size: Size, data: DataConfig, objective: TokenLabelConfig | ClassifyConfig, reference_batch: int
) -> TrainConfig:
    """What the three columns share; defaults that are not named here are the table's."""
    name = f"lvvit_{size}"
    model = find(name)
    with_tokens = isinstance(objective, TokenLabelConfig)
    if not with_tokens:
        model = replace(model, token_head=False, token_weight=0.0)
    # Three operations an image for L, as released.
    policy = "rand-n3-m9-mstd0.5-inc1" if size == "l" else "rand-m9-mstd0.5-inc1"
    return TrainConfig(
        model=model,
        data=data,
        objective=objective,
        augment=AugmentConfig(size=model.image_size, policy=policy),
        evaluation=EvaluationConfig(size=model.image_size, crop=crop_ratio(name)),
        optimizer=OptimizerConfig(reference_batch=reference_batch),
    )
