"""Every recipe by its name."""

from collections.abc import Callable
from functools import partial

from alltokens.errors import UserError, did_you_mean
from alltokens.recipes.token_labeling import Size, plain_labels, relabel, token_labels
from alltokens.train.config import DataConfig, TrainConfig

SIZES: tuple[Size, ...] = ("t", "s", "m", "l")
RECIPES: dict[str, Callable[[DataConfig], TrainConfig]] = {
    f"lvvit_{size}_{name}": partial(recipe, size)
    for name, recipe in (("token_labels", token_labels), ("relabel", relabel), ("plain_labels", plain_labels))
    for size in SIZES
}


def find_recipe(name: str) -> Callable[[DataConfig], TrainConfig]:
    """The recipe of a name; a mistyped one is refused with the closest."""
    if name not in RECIPES:
        raise UserError(f"unknown recipe '{name}'{did_you_mean(name, RECIPES)}")
    return RECIPES[name]
