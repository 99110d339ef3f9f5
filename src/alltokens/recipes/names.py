"""Every recipe by its name."""

from fnmatch import fnmatchcase

from alltokens.errors import UserError, did_you_mean
from alltokens.recipes.cait import CAIT_RECIPES
from alltokens.recipes.recipe import Recipe
from alltokens.recipes.three_things import THREE_THINGS
from alltokens.recipes.tl_v1 import TL_V1
from alltokens.recipes.token_labeling import TOKEN_LABELING

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (*TOKEN_LABELING, *TL_V1, *CAIT_RECIPES, *THREE_THINGS)}


def find_recipe(name: str) -> Recipe:
    """The recipe of a name; a mistyped one is refused with the closest."""
    if name not in RECIPES:
        raise UserError(f"unknown recipe '{name}'{did_you_mean(name, RECIPES)}")
    return RECIPES[name]


def list_recipes(glob: str = "*") -> list[Recipe]:
    """Those whose names match, by paper and table."""
    return [recipe for recipe in RECIPES.values() if fnmatchcase(recipe.name, glob)]
