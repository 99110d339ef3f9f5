"""The token labeling paper (TL and its supplement): any model under three kinds of supervision, and its tables' rows.

Labels are NFNet-F6's (`alltokens annotate IMAGES STORE --annotator nfnet_f6`) unless a recipe says otherwise.
"""

from dataclasses import replace
from typing import Literal

from alltokens.annotate.presets import PRESETS
from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.samples import EvaluationConfig
from alltokens.models.config import ViTConfig
from alltokens.models.factory import TIMM, find_config
from alltokens.models.timm_model import TimmConfig, published
from alltokens.models.weights import ModelConfig
from alltokens.models.zoo import crop_ratio
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.distill import DistillConfig
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.recipes.recipe import CLASS_FOLDERS, NOT_GIVEN, WITH_LABELS, Recipe
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.optimizer import OptimizerConfig
from alltokens.train.schedule import ScheduleConfig

Size = Literal["t", "s", "m", "l"]
Kind = Literal["token_labels", "relabel", "plain_labels"]
SIZES: tuple[Size, ...] = ("t", "s", "m", "l")
KINDS: tuple[Kind, ...] = ("token_labels", "relabel", "plain_labels")


def supervised(model: str, kind: Kind) -> TrainConfig:
    """A model under one column of TL-supp, Table 1; defaults that are not named here are the table's.

    The learning rate is 1e-3 at a batch of 640 for token labels, and of 1024 for the others. Ours: the crop of timm's
    models in evaluation, which is timm's own.
    """
    found = find_config(model)
    has_tokens = kind == "token_labels"
    config = with_token_head(found) if has_tokens else without_token_head(found)
    crop = published(model.removeprefix(TIMM)).crop_pct if isinstance(found, TimmConfig) else crop_ratio(model)
    # Three operations an image for L, as released.
    policy = "rand-n3-m9-mstd0.5-inc1" if model.startswith("lvvit_l") else "rand-m9-mstd0.5-inc1"
    return TrainConfig(
        model=config,
        data=CLASS_FOLDERS if kind == "plain_labels" else WITH_LABELS,
        objective=objective_of(kind),
        augment=AugmentConfig(size=config.image_size, policy=policy),
        evaluation=EvaluationConfig(size=config.image_size, crop=crop),
        optimizer=OptimizerConfig(reference_batch=640 if has_tokens else 1024),
    )


def objective_of(kind: Kind) -> TokenLabelConfig | ClassifyConfig:
    """Every token has its label; the image alone has its score map, without Mixup; or its class, with Mixup 0.8."""
    if kind == "token_labels":
        return TokenLabelConfig()
    return (
        ClassifyConfig(image_target="score_map", mix=MixConfig(kind="cutmix"))
        if kind == "relabel"
        else ClassifyConfig()
    )


def with_token_head(model: ModelConfig) -> ModelConfig:
    """With a prediction of every token; ours: every ViT answers by LV-ViT's rule then."""
    if isinstance(model, TimmConfig):
        return replace(model, token_head=True, drop_path=0.1)
    return replace(model, token_head=True, token_weight=0.5)


def without_token_head(model: ModelConfig) -> ModelConfig:
    """With a prediction of the image alone."""
    if isinstance(model, TimmConfig):
        return replace(model, token_head=False, drop_path=0.1)
    return replace(model, token_head=False, token_weight=0.0)


def token_labels(size: Size, data: DataConfig) -> TrainConfig:
    """LV-ViT on token labels."""
    return replace(supervised(f"lvvit_{size}", "token_labels"), data=data)


def mixed(config: TrainConfig, mix: MixConfig) -> TrainConfig:
    """The same with images mixed another way."""
    return replace(config, objective=replace(config.objective, mix=mix))


def fine_tuned(config: TrainConfig, pixels: int) -> TrainConfig:
    """The same for larger images, from weights that were trained before (TL-supp, section 1).

    Ours: the final learning rate, a fifth of the highest; the one of the training would be above it.
    """
    size = (pixels, pixels)
    return replace(
        config,
        initial=NOT_GIVEN,
        model=replace(config.model, image_size=size),
        augment=replace(config.augment, size=size),
        evaluation=replace(config.evaluation, size=size),
        optimizer=replace(config.optimizer, learning_rate=5e-6, reference_batch=None, weight_decay=1e-8),
        schedule=ScheduleConfig(epochs=30, final_rate=1e-6),
        batch=512,
    )


LVVIT_S = supervised("lvvit_s", "token_labels")
LVVIT_S_RELABEL = supervised("lvvit_s", "relabel")
LVVIT_S_PLAIN = supervised("lvvit_s", "plain_labels")
MIX_TOKEN, CUT_MIX = MixConfig(kind="token"), MixConfig(kind="cutmix")


def lvvit_s(name: str, config: TrainConfig, note: str = "") -> Recipe:
    """A row about LV-ViT-S."""
    return Recipe(name=name, model="lvvit_s", config=config, note=note)


COLUMNS = [
    Recipe(name=f"lvvit_{size}_{kind}", model=f"lvvit_{size}", config=supervised(f"lvvit_{size}", kind))
    for kind in KINDS
    for size in SIZES
]

NO_MIXUP = "ours: no Mixup beside it, as the row names one augmentation"
TABLE_2 = [
    lvvit_s("tl_t2_mixtoken_token_labels", LVVIT_S),
    lvvit_s("tl_t2_mixtoken_relabel", mixed(LVVIT_S_RELABEL, MIX_TOKEN)),
    lvvit_s("tl_t2_cutmix_relabel", LVVIT_S_RELABEL),
    lvvit_s("tl_t2_mixtoken_plain_labels", mixed(LVVIT_S_PLAIN, MIX_TOKEN), NO_MIXUP),
    lvvit_s("tl_t2_cutmix_plain_labels", mixed(LVVIT_S_PLAIN, CUT_MIX), NO_MIXUP),
]


def augmentations(prefix: str) -> list[Recipe]:
    """What becomes of LV-ViT-S without one augmentation, or with one more (TL Table 3, TL-v1 Table 7)."""
    without_erasing = replace(LVVIT_S.objective, finish=replace(LVVIT_S.objective.finish, erase=0.0))
    # Boxes of pixels on whole tokens stand for MixToken here: a pair has either a box or a blend.
    with_mixup = mixed(LVVIT_S, MixConfig(kind="cutmix_or_mixup", mixup_alpha=0.8))
    return [
        lvvit_s(f"{prefix}_all", LVVIT_S),
        lvvit_s(f"{prefix}_no_mixtoken", mixed(LVVIT_S, MixConfig(kind="none"))),
        lvvit_s(f"{prefix}_with_mixup", with_mixup, "ours: a box of pixels on whole tokens, or Mixup 0.8, in turns"),
        lvvit_s(f"{prefix}_no_cutout", replace(LVVIT_S, objective=without_erasing)),
        lvvit_s(f"{prefix}_no_randaug", replace(LVVIT_S, augment=replace(LVVIT_S.augment, policy=None))),
    ]


TEACHER = "timm/regnety_160.deit_in1k"
"""RegNetY-16GF as DeiT trained it (TL, section 4.2; CaiT, section 4.3)."""


def methods(model: Literal["deit_s", "lvvit_s"]) -> list[Recipe]:
    """How a teacher or its labels can take part (Table 4); ours: online ones have the hyper-parameters of offline."""
    with_tokens, plain = supervised(model, "token_labels"), supervised(model, "plain_labels")
    online = replace(with_tokens, data=CLASS_FOLDERS, objective=TokenLabelConfig(teacher=TEACHER))
    assert isinstance(plain.model, ViTConfig)
    student = replace(plain.model, distillation_token=True)
    distilled = replace(plain, model=student, objective=DistillConfig(teacher=TEACHER))
    configs = {
        "online_kd": distilled,
        "online_tl": online,
        "tl": with_tokens,
        "relabel": supervised(model, "relabel"),
        "vanilla": plain,
    }
    return [Recipe(name=f"tl_t4_{model}_{name}", model=model, config=config) for name, config in configs.items()]


def participating(size: Size, percent: int) -> Recipe:
    """A share of the tokens compared with their labels (Figure 4, left); the text names 20 % and 100 %."""
    config = supervised(f"lvvit_{size}", "token_labels")
    return Recipe(
        name=f"tl_f4_lvvit_{size}_participation_{percent}",
        model=f"lvvit_{size}",
        config=replace(config, objective=TokenLabelConfig(participation=percent / 100)),
        note="" if percent in (20, 100) else "ours: this share, as the text names 20 % and 100 % alone",
    )


FIGURE_4 = [participating(size, percent) for size in ("s", "m") for percent in (20, 40, 60, 80, 100)] + [
    lvvit_s(f"tl_f4_annotator_{name}", LVVIT_S, f"labels of 'alltokens annotate IMAGES STORE --annotator {name}'")
    for name in PRESETS
]


def with_and_without(table: str, short: str, model: str, note: str = "") -> list[Recipe]:
    """A model on token labels, and on plain ones."""
    return [
        Recipe(name=f"tl_{table}_{short}_{kind}", model=model, config=supervised(model, kind), note=note)
        for kind in ("token_labels", "plain_labels")
    ]


FIGURE_5 = [
    recipe
    for model in ("deit_s", "deit_b", "t2t_vit_14", "t2t_vit_19", "t2t_vit_24", "lvvit_s", "lvvit_m")
    for recipe in with_and_without("f5", model, model, "ours: which seven models, as the text names three families")
]
TABLE_5 = [
    recipe
    for short, model in (
        ("mixer_s16", "timm/mixer_s16_224"),
        ("mixer_b16", "timm/mixer_b16_224"),
        ("mixer_l16", "timm/mixer_l16_224"),
        ("resnest50", "timm/resnest50d"),
    )
    for recipe in with_and_without("t5", short, model)
]

FINAL_RATE = "ours: the final learning rate"
LVVIT_M = supervised("lvvit_m", "token_labels")
LVVIT_L_288, LVVIT_L_448 = (supervised(f"lvvit_l_{pixels}", "token_labels") for pixels in (288, 448))
TABLE_6 = [
    lvvit_s("tl_t6_lvvit_s", LVVIT_S),
    Recipe(
        name="tl_t6_lvvit_s_384",
        model="lvvit_s_384",
        config=fine_tuned(LVVIT_S, 384),
        start="tl_t6_lvvit_s",
        note=FINAL_RATE,
    ),
    Recipe(name="tl_t6_lvvit_m", model="lvvit_m", config=LVVIT_M),
    Recipe(
        name="tl_t6_lvvit_m_384",
        model="lvvit_m_384",
        config=fine_tuned(LVVIT_M, 384),
        start="tl_t6_lvvit_m",
        note=FINAL_RATE,
    ),
    Recipe(name="tl_t6_lvvit_l_288", model="lvvit_l_288", config=LVVIT_L_288),
    Recipe(name="tl_t6_lvvit_l_448", model="lvvit_l_448", config=LVVIT_L_448),
    Recipe(
        name="tl_t6_lvvit_l_288_to_448",
        model="lvvit_l_448",
        config=fine_tuned(LVVIT_L_288, 448),
        start="tl_t6_lvvit_l_288",
        note=FINAL_RATE,
    ),
    Recipe(
        name="tl_t6_lvvit_l_448_to_512",
        model="lvvit_l_512",
        config=fine_tuned(LVVIT_L_448, 512),
        start="tl_t6_lvvit_l_448",
        note=FINAL_RATE,
    ),
]

TABLE_4 = [*methods("deit_s"), *methods("lvvit_s")]
TOKEN_LABELING = [*COLUMNS, *TABLE_2, *augmentations("tl_t3"), *TABLE_4, *FIGURE_4, *FIGURE_5, *TABLE_5, *TABLE_6]
