"""CaiT: its models with the values of its Table 4, and the rows of its ablations, all with DeiT's hyper-parameters.

DeiT's, which the paper cites: Mixup 0.8, CutMix 1.0, smoothing 0.1, RandAugment 9/0.5, erasing 0.25, each image three
times in a batch's neighbourhood, 300 epochs, and no average of the weights. The inference at 256 pixels of Table 8 is
`alltokens evaluate runs/cait_t8_longer_training IMAGES --size 256`.
"""

from dataclasses import replace

from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.samples import EvaluationConfig
from alltokens.models.ablations import (
    CAIT_APPENDIX_B,
    CAIT_TABLE_2,
    CAIT_TABLE_8,
    CAIT_TABLE_9,
    CAIT_TABLES_1_AND_A,
)
from alltokens.models.zoo import CAIT, crop_ratio, find
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.distill import DistillConfig
from alltokens.recipes.recipe import CLASS_FOLDERS, NOT_GIVEN, Recipe
from alltokens.recipes.token_labeling import TEACHER, fine_tuned
from alltokens.train.config import TrainConfig
from alltokens.train.optimizer import OptimizerConfig
from alltokens.train.schedule import ScheduleConfig


def as_deit(model: str, epochs: int = 300, crop: float | None = None) -> TrainConfig:
    """A model on class labels with DeiT's hyper-parameters."""
    config = find(model)
    size = config.image_size
    return TrainConfig(
        model=config,
        data=CLASS_FOLDERS,
        objective=ClassifyConfig(),
        augment=AugmentConfig(size=size, interpolation="bicubic"),
        evaluation=EvaluationConfig(size=size, crop=crop_ratio(model) if crop is None else crop),
        # The same as DeiT's 5e-4 at 512.
        optimizer=OptimizerConfig(learning_rate=1e-3, reference_batch=1024),
        schedule=ScheduleConfig(epochs=epochs),
        average=None,
        batch=1024,
        repeats=3,
    )


AT_384 = "ours: DeiT's values at 384 pixels and the final learning rate, as CaiT prints none"


def at_384(name: str, before: Recipe, crop: float) -> Recipe:
    """A recipe's model fine-tuned on larger images."""
    config = fine_tuned(before.config, 384)
    config = replace(config, evaluation=replace(config.evaluation, crop=crop))
    return Recipe(name=name, model=f"{before.model}_384", config=config, start=before.name, note=AT_384)


def distilled(name: str, recipe: Recipe) -> Recipe:
    """The same with the teacher's choice beside the class label, each for half of the loss."""
    start = None if recipe.start is None else f"{recipe.start}_distilled"
    return replace(
        recipe, name=name, start=start, config=replace(recipe.config, objective=DistillConfig(teacher=TEACHER))
    )


MODELS_224 = [Recipe(name=f"cait_t3_{name[5:]}", model=name, config=as_deit(name, epochs=400)) for name in CAIT]
MODELS_384 = [at_384(f"{recipe.name}_384", recipe, crop=1.0) for recipe in MODELS_224]
DISTILLED = [distilled(f"{recipe.name}_distilled", recipe) for recipe in (*MODELS_224, *MODELS_384)]


def ablation(model: str, epochs: int = 300) -> Recipe:
    """A row of an ablation table, under its model's name."""
    return Recipe(name=model, model=model, config=as_deit(model, epochs))


def retrained(model: str) -> Recipe:
    """Appendix A: the gains of a first training stay as they are."""
    return Recipe(
        name=model,
        model=model,
        config=replace(as_deit(model), initial=NOT_GIVEN),
        start=model.replace("cait_a_frozen", "cait_t1_layerscale"),
        note="the weights to begin with are fresh ones but for the gains, which are those of that recipe",
    )


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
        note="ours: this drop rate, as the figure's axis is not in the text",
    )


FIGURE_3 = [dropping(depth, rate) for depth in (12, 18, 24, 36) for rate in (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)]

ARCHITECTURE = Recipe(name="cait_t8_architecture", model="cait_s36", config=as_deit("cait_s36", crop=0.875))
LONGER_TRAINING = Recipe(
    name="cait_t8_longer_training", model="cait_s36", config=as_deit("cait_s36", epochs=400, crop=0.875)
)
LARGER = at_384("cait_t8_384", LONGER_TRAINING, crop=0.875)
DISTILLED_BEFORE = distilled("cait_t8_longer_training_distilled", LONGER_TRAINING)
TABLE_8 = [
    *[ablation(model) for model in CAIT_TABLE_8 if model != "cait_t8_256"],
    ARCHITECTURE,
    LONGER_TRAINING,
    LARGER,
    replace(DISTILLED_BEFORE, note="not a row itself: what cait_t8_distilled begins with"),
    distilled("cait_t8_distilled", LARGER),
    distilled("cait_t8_crop", at_384("cait_t8_384", LONGER_TRAINING, crop=1.0)),
]
APPENDIX_B = [ablation(model, epochs=400) for model in CAIT_APPENDIX_B if "distillation" not in model] + [
    distilled(model, ablation(model, epochs=400)) for model in CAIT_APPENDIX_B if "distillation" in model
]

CAIT_RECIPES = [
    *MODELS_224,
    *MODELS_384,
    *DISTILLED,
    *TABLES_1_AND_A,
    *[ablation(model) for model in CAIT_TABLE_2],
    *FIGURE_3,
    *TABLE_8,
    *[ablation(model) for model in CAIT_TABLE_9],
    *APPENDIX_B,
]
