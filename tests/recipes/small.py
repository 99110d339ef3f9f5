"""Small siblings of recipes, for runs of two steps on a CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from alltokens.models.config import ConvStem, GroupNorm, ViTConfig
from alltokens.models.loading import build
from alltokens.models.timm_model import TimmConfig
from alltokens.models.weights import save_model
from alltokens.recipes.recipe import NOT_GIVEN, Recipe
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.schedule import ScheduleConfig

SIZE = (32, 32)
SMALL_TIMM = {"mixer": "mixer_s32_224", "resnest": "resnest14d"}


def small_model(model: ViTConfig | TimmConfig, classes: int) -> ViTConfig | TimmConfig:
    """Two blocks of 48 channels on 2 x 2 tokens; of timm's, the smallest of the family."""
    if isinstance(model, TimmConfig):
        family = model.name.split("_")[0].rstrip("0123456789d")
        return replace(model, name=SMALL_TIMM[family], image_size=(64, 64), classes=classes)
    stem = replace(model.stem, channels=4) if isinstance(model.stem, ConvStem) else model.stem
    at = model.class_token_at
    if at is not None and at > 0:
        at = 2 if at == model.depth else 1
    return replace(model, width=48, depth=2, heads=2, class_token_at=at, stem=stem, image_size=SIZE, classes=classes)


def small(recipe: Recipe, data: Path) -> TrainConfig:
    """The recipe's small sibling on 16 images; where it begins with trained weights, these are drawn."""
    config = recipe.config
    labels = None if config.data.labels is None else str(data / "labels")
    model = small_model(config.model, 2 if labels is None else 3)
    initial = config.initial
    if initial == NOT_GIVEN:
        initial = str(data / f"{recipe.start}.safetensors")
        save_model(build(model), initial)
    objective = config.objective
    if getattr(objective, "teacher", None) is not None:
        teacher = TimmConfig(name="test_resnet", classes=model.classes, image_size=model.image_size, token_head=False)
        weights = str(data / "teacher.safetensors")
        save_model(build(teacher), weights)
        objective = replace(objective, teacher=weights)
    return replace(
        config,
        model=model,
        objective=objective,
        data=DataConfig(root=str(data / "photos"), labels=labels),
        initial=initial,
        # A batch of 8 would have a learning rate below the final one.
        optimizer=replace(config.optimizer, reference_batch=None),
        schedule=ScheduleConfig(epochs=1, warmup_epochs=0.0, final_rate=0.0),
        batch=8,
        precision="float32",
    )


def kind_of(recipe: Recipe) -> tuple[Any, ...]:
    """Recipes of one kind run the same code."""
    config, model = recipe.config, recipe.config.model
    objective = config.objective
    how: tuple[Any, ...] = (
        type(objective),
        getattr(objective, "loss", None),
        objective.mix.kind,
        config.optimizer.kind,
    )
    if isinstance(model, TimmConfig):
        return (*how, model.name.split("_")[0], model.token_head)
    joins = model.class_token_at if model.class_token_at is None else model.class_token_at > 0
    norm, attention = type(model.norm) is GroupNorm, model.attention
    how = (*how, model.distillation_token)
    return (*how, type(model.stem), type(model.residual), norm, attention, joins, model.class_attention is not None)
