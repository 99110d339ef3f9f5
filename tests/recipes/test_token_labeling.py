"""Recipes against the table that they are rows of."""

import pytest

from alltokens.data.order import Share
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.recipes.names import find_recipe
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.optimizer import peak_learning_rate


def config_of(name: str) -> TrainConfig:
    trains_on_labels = not name.endswith("plain_labels")
    return find_recipe(name)(DataConfig(root="images", labels="labels" if trains_on_labels else None))


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


def test_a_batch_of_the_table_is_shared_by_eight_processes():
    assert Share(batch=config_of("lvvit_s_token_labels").batch, processes=8).batches(1_281_167) == 1251
