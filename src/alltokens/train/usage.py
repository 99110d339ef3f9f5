"""How the model of a run is used: as it was trained."""

from collections.abc import Sequence
from pathlib import Path

from alltokens.models.usage import Usage
from alltokens.train.config import TrainConfig
from alltokens.train.run_folder import CLASSES, CONFIG, read_classes, read_config


def usage_of(config: TrainConfig, classes: Sequence[str]) -> Usage:
    """Of a model that is trained so, and has these classes."""
    finish, evaluation = config.objective.finish, config.evaluation
    return Usage(
        mean=finish.mean,
        std=finish.std,
        crop=evaluation.crop,
        interpolation=evaluation.interpolation,
        classes=tuple(classes),
    )


def usage_of_run(run: Path) -> Usage:
    """By its folder, for weights that may be older than what files of ours say of themselves."""
    return usage_of(read_config(run / CONFIG), read_classes(run / CLASSES))
