"""CaiT: its models with the values of its Table 4, and the rows of its ablations, all with DeiT's hyper-parameters.

Larger images come after the training, with DeiT's values at 384 pixels, as CaiT prints none of its own.
The inference at 256 pixels of Table 8 (line 344) is no training, but an evaluation of the row before it.
"""

from dataclasses import replace
from pathlib import Path

import torch

from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.samples import EvaluationConfig
from alltokens.errors import UserError
from alltokens.models.ablations import (
    CAIT_APPENDIX_B,
    CAIT_TABLE_2,
    CAIT_TABLE_8,
    CAIT_TABLE_9,
    CAIT_TABLES_1_AND_A,
)
from alltokens.models.config import LayerScale, ViTConfig
from alltokens.models.loading import build
from alltokens.models.weights import read_weights, save_model
from alltokens.models.zoo import CAIT, crop_ratio, find
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.distill import DistillConfig
from alltokens.recipes.recipe import CLASS_FOLDERS, NOT_GIVEN, Recipe
from alltokens.recipes.token_labeling import TEACHER, larger
from alltokens.train.config import TrainConfig
from alltokens.train.optimizer import OptimizerConfig
from alltokens.train.schedule import ScheduleConfig

EARLIER_CROP = 0.875
"""Of evaluation, before the change to 1.0 (Tables 8 and 10)."""


def as_deit(model: str, epochs: int = 300, crop: float | None = None) -> TrainConfig:
    """A model on class labels with DeiT's hyper-parameters; those that are not named here are defaults."""
    config = find(model)
    return TrainConfig(
        model=config,
        data=CLASS_FOLDERS,
        objective=ClassifyConfig(),
        augment=AugmentConfig(interpolation="bicubic"),
        evaluation=EvaluationConfig(crop=crop_ratio(model) if crop is None else crop),
        # The same as DeiT's 5e-4 at 512.
        optimizer=OptimizerConfig(learning_rate=1e-3, reference_batch=1024),
        schedule=ScheduleConfig(epochs=epochs),
        average=None,
        batch=1024,
        repeats=3,
        precision="fp16",
    )


def distilled(recipe: Recipe, name: str = "") -> Recipe:
    """The same with the teacher's choice beside the class label, each for half of the loss."""
    return replace(
        recipe,
        name=name or f"{recipe.name}_distilled",
        start=None if recipe.start is None else f"{recipe.start}_distilled",
        config=replace(recipe.config, objective=DistillConfig(teacher=TEACHER)),
    )


MODELS_224 = [Recipe(name=model.replace("cait", "cait_t3"), model=model, config=as_deit(model, 400)) for model in CAIT]
MODELS_384 = [larger(f"{recipe.name}_384", recipe, f"{recipe.model}_384") for recipe in MODELS_224]
DISTILLED = [distilled(recipe) for recipe in (*MODELS_224, *MODELS_384)]
TABLE_5 = [
    distilled(larger(recipe.name.replace("t3", "t5") + "_448", recipe, f"{recipe.model}_448"))
    for recipe in MODELS_224
    if recipe.model in ("cait_m36", "cait_m48")
]


def ablation(model: str, epochs: int = 300) -> Recipe:
    """A row of an ablation table, under its model's name."""
    return Recipe(name=model, model=model, config=as_deit(model, epochs))


def retrained(model: str) -> Recipe:
    """Appendix A: the gains of a first training stay as they are, and all else is trained anew."""
    return Recipe(
        name=model,
        model=model,
        config=replace(as_deit(model), initial=NOT_GIVEN),
        start=model.replace("cait_a_frozen", "cait_t1_layerscale"),
        note="of those weights the gains alone: alltokens.recipes.cait.save_with_gains makes the file to begin with",
    )


def save_with_gains(first: str | Path, path: str | Path) -> None:
    """A file of fresh weights with the frozen gains of a first training's file (Appendix A, re-training)."""
    file = read_weights(first)
    config = file.config
    if not isinstance(config, ViTConfig) or not isinstance(config.residual, LayerScale):
        raise UserError(
            f"'{first}' has no gains; give best/model.safetensors of a run of cait_t1_layerscale_12, 18, 24 or 36"
        )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(replace(config, residual=replace(config.residual, learned=False)))
    gains = {name: value for name, value in file.state.items() if name.endswith("gain.weight")}
    model.load_state_dict(gains, strict=False)
    save_model(model, path)


TABLES_1_AND_A = [
    retrained(model) if model.startswith("cait_a_frozen") else ablation(model) for model in CAIT_TABLES_1_AND_A
]


def dropping(depth: int, rate: float) -> Recipe:
    """DeiT-S with LayerScale of one depth and drop rate (Figure 3)."""
    model = f"cait_t1_layerscale_{depth}"
    config = as_deit(model)
    return Recipe(
        name=f"cait_f3_depth_{depth}_drop_{rate:g}",
        model=model,
        config=replace(config, model=replace(find(model), drop_path=rate)),
        note="the depths and drop rates are ours, as the figure's axes are not in the text",
    )


FIGURE_3 = [dropping(depth, rate) for depth in (12, 18, 24, 36) for rate in (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)]

LONGER_TRAINING = Recipe(
    name="cait_t8_longer_training", model="cait_s36", config=as_deit("cait_s36", epochs=400, crop=EARLIER_CROP)
)
LARGER = larger("cait_t8_384", LONGER_TRAINING, "cait_s36_384")
LARGER_DISTILLED = distilled(LARGER, "cait_t8_distilled")
WHOLE_SEEN = replace(LARGER_DISTILLED.config, evaluation=EvaluationConfig(crop=1.0))
TABLE_8 = [
    *[ablation(model) for model in CAIT_TABLE_8 if model != "cait_t8_256"],
    Recipe(name="cait_t8_architecture", model="cait_s36", config=as_deit("cait_s36", crop=EARLIER_CROP)),
    LONGER_TRAINING,
    LARGER,
    replace(distilled(LONGER_TRAINING), note="the last two rows begin with it"),
    LARGER_DISTILLED,
    replace(LARGER_DISTILLED, name="cait_t8_crop", config=WHOLE_SEEN),
]


def with_a_teacher(name: str, model: str) -> Recipe:
    """One side of Table B.1."""
    return distilled(Recipe(name=name, model=model, config=as_deit(model, epochs=400)), name)


APPENDIX_B = [
    *[ablation(model, epochs=400) for model in CAIT_APPENDIX_B if "distillation" not in model],
    *[with_a_teacher(model, model) for model in CAIT_APPENDIX_B if "distillation" in model],
    with_a_teacher("cait_b_no_distillation_token_xxs24", "cait_xxs24"),
    with_a_teacher("cait_b_no_distillation_token_m24", "cait_m24"),
]

CAIT_RECIPES = [
    *MODELS_224,
    *MODELS_384,
    *DISTILLED,
    *TABLE_5,
    *TABLES_1_AND_A,
    *[ablation(model) for model in CAIT_TABLE_2],
    *FIGURE_3,
    *TABLE_8,
    *[ablation(model) for model in CAIT_TABLE_9],
    *APPENDIX_B,
]
