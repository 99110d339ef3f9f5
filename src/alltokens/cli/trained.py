"""The trained model that a command line names: of a run, or in a weight file, with how it wants its images."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import cast

from alltokens.annotate.class_map import class_names
from alltokens.augment.finish import FinishConfig
from alltokens.cli.export import model_name
from alltokens.data.samples import EvaluationConfig
from alltokens.errors import UserError, require
from alltokens.evaluate.inference import Trained, resized
from alltokens.export.scores import record
from alltokens.models.factory import TIMM, open_model
from alltokens.models.usage import Channels, Interpolation, Usage
from alltokens.models.weights import Model, WeightFile, read_weights
from alltokens.models.zoo import MODELS
from alltokens.objectives.teachers import require_classifier
from alltokens.train.run_folder import CLASSES, CONFIG, Which, weights_of_run
from alltokens.train.usage import usage_of_run

TOKEN_HEADS = {"token_head.weight", "aux_head.weight"}
"""As our files and released ones call it."""


def open_trained(
    source: str, which: Which | None, name: str | None, size: int | None = None, crop: float | None = None
) -> Trained:
    """The best or last model of a run folder, or that of a weight file, which may lie in a run."""
    path = Path(source)
    run = find_run(path)
    if path.is_dir():
        require(name is None, f"--name is for weight files, and '{source}' is a run; got --name {name}")
        path = weights_of_run(path, which or "best")
    else:
        require(which is None, f"--which chooses from a run, and '{source}' is a weight file; got --which {which}")
    file = read_weights(path)
    model = open_file(file, name)
    usage = file.usage if run is None else usage_of_run(run)
    if usage is None:
        usage = published_usage(model, name or model_name(source, is_known=False), crop)
    if size is not None:
        model = resized(model, size)
    return Trained(
        source,
        model.float().eval(),
        usage.classes,
        EvaluationConfig(crop=usage.crop if crop is None else crop, interpolation=usage.interpolation),
        FinishConfig(mean=usage.mean, std=usage.std, erase=0.0),
    )


def find_run(path: Path) -> Path | None:
    """The run that the path is, or that the file lies in."""
    if path.is_dir():
        require((path / CONFIG).is_file(), f"'{path}' is no run, as it has no {CONFIG}; give a run or a weight file")
        return path
    require(
        str(path) not in MODELS and not str(path).startswith(TIMM),
        f"'{path}' is the name of a model, which no weights come with; give a run or a weight file",
    )
    require(path.is_file(), f"there is no run or weight file '{path}'")
    above = path.absolute().parent.parent
    return above if (above / CONFIG).is_file() and (above / CLASSES).is_file() else None


def open_file(file: WeightFile, name: str | None) -> Model:
    """The model in a weight file, without a token head that the file lacks: it would be a fresh draw."""
    model = open_model(file.path, name)
    if not TOKEN_HEADS & file.state.keys():
        model.token_head, model.config = None, replace(model.config, token_head=False, token_weight=0.0)
    require_classifier(file, model.config)
    return model


def published_usage(model: Model, name: str, crop: float | None) -> Usage:
    """How the model's publisher prepares images; where the crop is not known, ours is taken, with a warning."""
    try:
        about = record(model, name, crop)
    except UserError:
        crop = EvaluationConfig.crop
        sentence = f"the crop ratio of '{name}' is not known, as its config is no published one: {crop} is taken"
        warnings.warn(sentence, stacklevel=2)
        about = record(model, name, crop)
    return Usage(
        mean=cast(Channels, about.mean),
        std=cast(Channels, about.standard_deviation),
        crop=about.crop_ratio,
        interpolation=cast(Interpolation, about.interpolation),
        classes=class_names(model.config.classes),
    )
