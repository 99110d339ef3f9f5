"""Every recipe resolves, and its small sibling trains for two steps."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alltokens.errors import UserError
from alltokens.models.config import LayerScale
from alltokens.models.factory import find_config
from alltokens.models.loading import build
from alltokens.models.timm_model import TimmConfig
from alltokens.models.weights import read_weights, save_model
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.plain import from_plain, to_plain
from alltokens.recipes.cait import CAIT_RECIPES, save_with_gains
from alltokens.recipes.names import RECIPES, find_recipe, list_recipes
from alltokens.recipes.recipe import NOT_GIVEN
from alltokens.recipes.three_things import THREE_THINGS
from alltokens.recipes.tl_v1 import TL_V1
from alltokens.recipes.token_labeling import TOKEN_LABELING
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.journal import read_reports
from alltokens.train.optimizer import peak_learning_rate
from alltokens.train.schedule import learning_rate
from alltokens.train.trainer import train

from ..train.toy_runs import MACHINE, silent, toy_data
from .small import kind_of, small, small_model

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
    assert len(RECIPES) == sum(map(len, (TOKEN_LABELING, TL_V1, CAIT_RECIPES, THREE_THINGS)))
    for model in {recipe.model for recipe in RECIPES.values()}:
        find_config(model)


def test_a_recipe_begins_with_the_weights_of_another_or_with_none():
    for recipe in RECIPES.values():
        assert (recipe.config.initial == NOT_GIVEN) == (recipe.start is not None)


def test_a_recipe_begins_with_the_same_model_and_objective_on_smaller_images():
    for recipe in RECIPES.values():
        if recipe.start is None:
            continue
        before, own = RECIPES[recipe.start].config, recipe.config
        if recipe.name.startswith("cait_a_frozen"):
            residual = LayerScale(initial=before.model.residual.initial, learned=False)
            assert own.model == replace(before.model, residual=residual)
        else:
            assert own.model.image_size > before.model.image_size
            assert own.model == replace(before.model, image_size=own.model.image_size)
        assert own.objective == before.objective


def test_a_recipes_model_is_the_named_one_but_for_its_heads_and_what_the_row_changes():
    for recipe in RECIPES.values():
        named, own, objective = find_config(recipe.model), recipe.config.model, recipe.config.objective
        has_tokens = isinstance(objective, TokenLabelConfig)
        if isinstance(named, TimmConfig):
            expected = replace(named, token_head=has_tokens, drop_path=0.1)
        else:
            expected = replace(named, token_head=has_tokens, token_weight=0.5 if has_tokens else 0.0)
        if recipe.name.endswith("_online_kd"):
            expected = replace(expected, distillation_token=True)
        if recipe.name.startswith("cait_f3"):
            expected = replace(expected, drop_path=float(recipe.name.split("_")[-1]))
        assert own == expected, recipe.name


def test_a_second_training_has_the_gains_of_the_first_and_no_other_weights(tmp_path: Path):
    trained = build(small_model(RECIPES["cait_t1_layerscale_12"].config.model, 2))
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.uniform_(1, 2)
    save_model(trained, tmp_path / "first.safetensors")
    save_with_gains(tmp_path / "first.safetensors", tmp_path / "second.safetensors")
    first, second = (read_weights(tmp_path / f"{name}.safetensors") for name in ("first", "second"))
    same = {name for name, value in second.state.items() if torch.equal(value, first.state[name])}
    assert same == {f"blocks.{block}.{part}.gain.weight" for block in range(2) for part in ("attention", "mlp")}
    assert second.config == small_model(RECIPES["cait_a_frozen_12"].config.model, 2)


def test_a_file_without_gains_is_refused(tmp_path: Path):
    save_model(build(small_model(RECIPES["cait_t1_baseline_12"].config.model, 2)), tmp_path / "first.safetensors")
    with pytest.raises(UserError) as error:
        save_with_gains(tmp_path / "first.safetensors", tmp_path / "second.safetensors")
    assert str(error.value) == (
        f"'{tmp_path / 'first.safetensors'}' has no gains; "
        "give best/model.safetensors of a run of cait_t1_layerscale_12, 18, 24 or 36"
    )


def test_a_mistyped_recipe_is_answered_with_the_closest():
    with pytest.raises(UserError) as error:
        find_recipe("lvvit_s_token_label")
    closest = "lvvit_s_token_labels, lvvit_t_token_labels, lvvit_m_token_labels"
    assert str(error.value) == f"unknown recipe 'lvvit_s_token_label'; did you mean {closest}?"


@pytest.mark.parametrize(
    ("figure", "points"), [("tl_f4", 19), ("tl_f5", 14), ("cait_f3", 28), ("3t_f1", 12), ("3t_f2", 8), ("3t_f3", 20)]
)
def test_a_figure_has_all_its_points(figure: str, points: int):
    """Rows of tables are counted by the accuracies that are cited of them."""
    assert len(list_recipes(f"{figure}_*")) == points


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
