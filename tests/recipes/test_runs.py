"""Every recipe resolves, and its small sibling trains for two steps."""

from pathlib import Path

import pytest

from alltokens.errors import UserError
from alltokens.models.factory import find_config
from alltokens.models.zoo import MODELS
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.plain import from_plain, to_plain
from alltokens.recipes.names import RECIPES, find_recipe, list_recipes
from alltokens.recipes.recipe import NOT_GIVEN
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.journal import read_reports
from alltokens.train.optimizer import peak_learning_rate
from alltokens.train.schedule import learning_rate
from alltokens.train.trainer import train

from ..train.toy_runs import MACHINE, silent, toy_data
from .small import kind_of, small

FIRST_OF_KIND = {kind_of(recipe): name for name, recipe in reversed(RECIPES.items())}.values()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("data"), images=16)


def test_every_recipe_resolves_with_the_users_data_in_place():
    for recipe in RECIPES.values():
        labels = None if recipe.config.data.labels is None else "labels"
        config = recipe(DataConfig(root="images", labels=labels))
        assert (config.data.root, config.data.labels) == ("images", labels)
        assert from_plain(TrainConfig, to_plain(config)) == config
        # The schedule refuses rates that are above the run's own.
        assert learning_rate(config.schedule, peak_learning_rate(config.optimizer, config.batch), 0, 1251) > 0


def test_names_are_used_once_and_models_exist():
    assert all(recipe.name == name for name, recipe in RECIPES.items())
    for model in {recipe.model for recipe in RECIPES.values()}:
        find_config(model)


def test_a_recipe_begins_with_the_weights_of_another_or_with_none():
    for recipe in RECIPES.values():
        assert (recipe.config.initial == NOT_GIVEN) == (recipe.start is not None)
        assert recipe.start is None or recipe.start in RECIPES


def test_a_recipes_model_is_the_named_one_but_for_its_heads_and_what_the_row_changes():
    for recipe in RECIPES.values():
        if recipe.model in MODELS:
            model, own = MODELS[recipe.model], recipe.config.model
            assert (own.width, own.depth, own.heads, own.stem) == (model.width, model.depth, model.heads, model.stem)
            assert own.image_size == model.image_size
            assert own.token_head == isinstance(recipe.config.objective, TokenLabelConfig)


def test_a_mistyped_recipe_is_answered_with_the_closest():
    with pytest.raises(UserError) as error:
        find_recipe("lvvit_s_token_label")
    closest = "lvvit_s_token_labels, lvvit_t_token_labels, lvvit_m_token_labels"
    assert str(error.value) == f"unknown recipe 'lvvit_s_token_label'; did you mean {closest}?"


def test_a_pattern_lists_the_rows_of_a_table():
    assert [recipe.name for recipe in list_recipes("tlv1_t6*")] == [
        "tlv1_t6_mixtoken_token_labels",
        "tlv1_t6_mixtoken_relabel",
        "tlv1_t6_cutmix_relabel",
    ]


@pytest.mark.parametrize(
    "name", [name if name in FIRST_OF_KIND else pytest.param(name, marks=pytest.mark.slow) for name in RECIPES]
)
def test_a_small_sibling_trains_for_two_steps(name: str, data: Path, tmp_path: Path):
    train(small(RECIPES[name], data), tmp_path / "run", MACHINE, silent)
    (report,) = read_reports(tmp_path / "run" / "metrics.jsonl")
    assert report["step"] == 2
