"""3T: its baselines and its parallel models, trained by the A2 procedure of "ResNet strikes back" as 3T amends it."""

from alltokens.augment.finish import FinishConfig
from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.samples import EvaluationConfig
from alltokens.models.zoo import crop_ratio, find
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.mixing import MixConfig
from alltokens.recipes.recipe import CLASS_FOLDERS, Recipe
from alltokens.train.config import TrainConfig
from alltokens.train.optimizer import OptimizerConfig
from alltokens.train.schedule import ScheduleConfig


def as_a2(model: str, epochs: int) -> TrainConfig:
    """A model on class labels; wider ones learn at a lower rate (section 2.2), all else here is A2's."""
    config = find(model)
    return TrainConfig(
        model=config,
        data=CLASS_FOLDERS,
        objective=ClassifyConfig(
            loss="binary",
            smoothing=0.0,
            mix=MixConfig(kind="cutmix_or_mixup", mixup_alpha=0.1),
            finish=FinishConfig(erase=0.0),
        ),
        augment=AugmentConfig(policy="rand-m7-mstd0.5-inc1"),
        evaluation=EvaluationConfig(crop=crop_ratio(model)),
        optimizer=OptimizerConfig(
            kind="lamb", learning_rate=4e-3 if config.width <= 384 else 3e-3, reference_batch=2048, weight_decay=0.02
        ),
        schedule=ScheduleConfig(epochs=epochs),
        average=None,
        batch=2048,
        repeats=3,
    )


def row(table: str, model: str, epochs: int = 300, note: str = "") -> Recipe:
    """A model for a number of epochs."""
    return Recipe(name=f"3t_{table}_{model}_{epochs}", model=model, config=as_a2(model, epochs), note=note)


TABLE_1 = [
    row("t1", f"vit_{size}{gains}", epochs)
    for gains, epochs in (("", 300), ("_ls", 400))
    for size in "ti s b l".split()
]
TABLE_2 = [
    row("t2", f"vit_b_{shape}{gains}", epochs)
    for shape in ("36x1", "18x2")
    for epochs in (300, 400)
    for gains in ("", "_ls")
]
FIGURE_1 = [
    row("f1", f"vit_{size}_{shape}")
    for size, shapes in (("s", "36x1 18x2 12x3 9x4"), ("s", "60x1 30x2 20x3 15x4"), ("b", "36x1 18x2 12x3 9x4"))
    for shape in shapes.split()
]
FIGURE_2 = [
    row("f2", f"vit_{size}_{shape}" + "_ls" * (size == "l"))
    for size in "ti s b l".split()
    for shape in ("24x1", "12x2")
]
FIGURE_3 = [
    row("f3", f"vit_{size}_{shape}", note="the numbers of blocks are ours, as the figure's axis is not in the text")
    for size in "sb"
    for shape in "12x1 6x2 24x1 12x2 36x1 18x2 48x1 24x2 60x1 30x2".split()
]
THREE_THINGS = [*TABLE_1, *TABLE_2, *FIGURE_1, *FIGURE_2, *FIGURE_3]
