"""Models by name."""

from dataclasses import replace
from pathlib import Path

from alltokens.errors import UserError
from alltokens.models.resize import set_image_size
from alltokens.models.vit import VisionTransformer
from alltokens.models.weights import load_model
from alltokens.models.zoo import find


def create_model(
    name: str,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    weights: str | Path | None = None,
) -> VisionTransformer:
    """The named model; classes and image size default to the name's own, weights to a fresh draw."""
    config = find(name)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    config = replace(
        config,
        classes=config.classes if classes is None else classes,
        image_size=config.image_size if size is None else size,
    )
    if weights is None:
        return VisionTransformer(config)
    model = load_model(weights)
    if replace(model.config, image_size=config.image_size) != config:
        raise UserError(f"'{weights}' does not hold a {name} with {config.classes} classes")
    set_image_size(model, *config.image_size)
    return model
