"""Models by name, with fresh weights or those of a file, and models from files alone."""

from dataclasses import replace
from pathlib import Path

from alltokens.errors import UserError, did_you_mean
from alltokens.models.loading import as_stored, build, fitting, load, stored_classes
from alltokens.models.timm_model import timm_config
from alltokens.models.weights import Model, ModelConfig, read_weights
from alltokens.models.zoo import MODELS, find

TIMM = "timm/"


def create_model(
    name: str,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    weights: str | Path | None = None,
) -> Model:
    """The named model, or timm's as `timm/NAME`; the image size defaults to the name's own.

    `weights` is a file in any layout we read; without one the weights are drawn, and with one the classes default to
    the file's own.
    """
    config = find_config(name)
    if isinstance(image_size, int):
        image_size = image_size, image_size
    config = replace(config, image_size=image_size or config.image_size)
    if weights is None:
        return build(replace(config, classes=config.classes if classes is None else classes))
    file = read_weights(weights)
    return load(file, replace(config, classes=stored_classes(file, config) if classes is None else classes), name)


def open_model(source: str | Path, name: str | None = None) -> Model:
    """A model by name, or from a weight file; `name` says which model a file is of that does not say so itself."""
    if is_name(str(source)):
        return create_model(str(source))
    file = read_weights(source)
    if name is not None:
        config = find_config(name)
        size = file.image_size or config.image_size
        return load(file, replace(config, image_size=size, classes=stored_classes(file, config)), name)
    if file.config is not None:
        return load(file, file.config, "its own config")
    fits = fitting(file)
    if not fits:
        raise UserError(f"'{source}' does not say which model it is, and fits none known by name; name the model")
    # Names that differ in what no tensor shows, such as the number of heads, fit the same files.
    taken = file.name if file.name in fits else fits[0]
    return load(file, as_stored(file, find(taken)), taken)


def find_config(name: str) -> ModelConfig:
    """The config of one of our names, or of timm's after `timm/`."""
    return timm_config(name.removeprefix(TIMM)) if name.startswith(TIMM) else find(name)


def is_name(source: str) -> bool:
    """Whether it is a model's name rather than a path; a word that is neither is refused with the closest names."""
    if source in MODELS or source.startswith(TIMM):
        return True
    if Path(source).exists() or Path(source).suffix or "/" in source:
        return False
    raise UserError(f"'{source}' is neither a model nor a file{did_you_mean(source, MODELS)}")
