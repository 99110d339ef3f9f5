"""Recipes against the table that they are rows of."""

from pathlib import Path

import pytest

from alltokens.data.order import Share
from alltokens.errors import UserError
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.plain import from_plain, to_plain
from alltokens.recipes.names import RECIPES, find_recipe
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.optimizer import peak_learning_rate

SUPPLEMENT = Path(__file__).parents[3] / "shared" / "papers" / "003_e3adb4432ccd098d.txt"


def config_of(name: str) -> TrainConfig:
    trains_on_labels = not name.endswith("plain_labels")
    return find_recipe(name)(DataConfig(root="images", labels="labels" if trains_on_labels else None))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_the_values_that_the_table_gives_all(name: str):
    config = config_of(name)
    assert (config.batch, config.schedule.epochs, config.schedule.warmup_epochs) == (1024, 300, 5)
    assert (config.optimizer.kind, config.optimizer.weight_decay, config.schedule.kind) == ("adamw", 0.05, "cosine")
    assert config.objective.finish.erase == 0.25
    assert config.model.dropout == 0.0
    assert "m9-mstd0.5" in config.augment.policy
    assert from_plain(TrainConfig, to_plain(config)) == config


@pytest.mark.parametrize(
    ("kind", "rate", "objective"),
    [
        ("plain_labels", 1e-3, ClassifyConfig),
        ("relabel", 1e-3, ClassifyConfig),
        ("token_labels", 1.6e-3, TokenLabelConfig),
    ],
)
def test_the_columns_differ_in_rate_and_mixing(kind: str, rate: float, objective: type):
    config = config_of(f"lvvit_s_{kind}")
    assert isinstance(config.objective, objective)
    assert peak_learning_rate(config.optimizer, config.batch) == pytest.approx(rate)
    assert config.model.token_head == (kind == "token_labels")
    mixes = {"plain_labels": "cutmix_or_mixup", "relabel": "cutmix", "token_labels": "token"}
    assert config.objective.mix.kind == mixes[kind]
    assert config.objective.mix.mixup_alpha == (0.8 if kind == "plain_labels" else None)


def test_drop_path_and_crops_grow_with_the_model():
    configs = [config_of(f"lvvit_{size}_token_labels") for size in "tsml"]
    assert [config.model.drop_path for config in configs] == [0.1, 0.1, 0.2, 0.3]
    assert [config.evaluation.crop for config in configs] == [0.9, 0.9, 1.0, 1.0]
    assert ["-n3-" in config.augment.policy for config in configs] == [False, False, False, True]


@pytest.mark.skipif(not SUPPLEMENT.exists(), reason="the papers are not here")
@pytest.mark.parametrize(
    ("line", "row"),
    [
        (10, "Epoch\t300\t300\t300"),
        (11, "Batch size\t1024\t1024\t1024"),
        (14, "Weight decay\t0.05\t0.05\t0.05"),
        (15, "Warmup epochs\t5\t5\t5"),
        (18, "MixUp alpha\t0.8\t-\t-"),
        (19, "Erasing prob.\t0.25\t0.25\t0.25"),
        (20, "RandAug\t9/0.5\t9/0.5\t9/0.5"),
    ],
)
def test_the_table_says_so(line: int, row: str):
    assert SUPPLEMENT.read_text().splitlines()[line - 1] == row


def test_a_mistyped_recipe_is_answered_with_the_closest():
    with pytest.raises(UserError) as error:
        find_recipe("lvvit_s_token_label")
    closest = "lvvit_s_token_labels, lvvit_t_token_labels, lvvit_m_token_labels"
    assert str(error.value) == f"unknown recipe 'lvvit_s_token_label'; did you mean {closest}?"


def test_a_batch_of_the_table_is_shared_by_eight_processes():
    assert Share(batch=config_of("lvvit_s_token_labels").batch, processes=8).batches(1_281_167) == 1251
