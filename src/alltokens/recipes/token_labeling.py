"""The token labeling paper (TL and its supplement): models under three kinds of supervision, and its tables' rows."""

from dataclasses import replace
from typing import Literal

from alltokens.annotate.presets import PRESETS
from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.samples import EvaluationConfig
from alltokens.models.config import ViTConfig
from alltokens.models.factory import TIMM, find_config
from alltokens.models.timm_model import TimmConfig, published
from alltokens.models.weights import ModelConfig
from alltokens.models.zoo import crop_ratio, find
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.distill import DistillConfig
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.recipes.recipe import CLASS_FOLDERS, NOT_GIVEN, WITH_LABELS, Recipe
from alltokens.train.config import TrainConfig
from alltokens.train.optimizer import OptimizerConfig
from alltokens.train.schedule import ScheduleConfig

Kind = Literal["token_labels", "relabel", "plain_labels"]
KINDS: tuple[Kind, ...] = ("token_labels", "relabel", "plain_labels")

MIX_TOKEN, CUT_MIX = MixConfig(kind="token"), MixConfig(kind="cutmix")
OBJECTIVES: dict[Kind, TokenLabelConfig | ClassifyConfig] = {
    "token_labels": TokenLabelConfig(mix=MIX_TOKEN),
    "relabel": ClassifyConfig(image_target="score_map", rule="zero_fill", mix=CUT_MIX),
    "plain_labels": ClassifyConfig(mix=MixConfig(kind="cutmix_or_mixup", mixup_alpha=0.8)),
}
"""Every token has its label; the image alone has its score map, without Mixup; or its class, with Mixup too."""


def supervised(model: str, kind: Kind) -> TrainConfig:
    """A model under one column of TL-supp, Table 1; defaults that are not named here are the table's."""
    found = find_config(model)
    config = with_heads(found, tokens=kind == "token_labels")
    crop = published(model.removeprefix(TIMM)).crop_pct if isinstance(found, TimmConfig) else crop_ratio(model)
    # Three operations an image for L, as released.
    policy = "rand-n3-m9-mstd0.5-inc1" if model.startswith("lvvit_l") else "rand-m9-mstd0.5-inc1"
    return TrainConfig(
        model=config,
        data=CLASS_FOLDERS if kind == "plain_labels" else WITH_LABELS,
        objective=OBJECTIVES[kind],
        augment=AugmentConfig(policy=policy),
        evaluation=EvaluationConfig(crop=crop),
        optimizer=OptimizerConfig(reference_batch=640 if kind == "token_labels" else 1024),
    )


def with_heads(model: ModelConfig, tokens: bool) -> ModelConfig:
    """With a prediction of every token, which a ViT then adds to its answer as LV-ViT does, or of the image alone."""
    if isinstance(model, TimmConfig):
        return replace(model, token_head=tokens, drop_path=0.1)
    return replace(model, token_head=tokens, token_weight=0.5 if tokens else 0.0)


def mixed(config: TrainConfig, mix: MixConfig) -> TrainConfig:
    """The same with images mixed another way."""
    return replace(config, objective=replace(config.objective, mix=mix))


def larger(name: str, before: Recipe, model: str) -> Recipe:
    """A recipe's model fine-tuned on larger images, those of another of its names (TL-supp, section 1)."""
    config = before.config
    tuned = replace(
        config,
        initial=NOT_GIVEN,
        model=replace(config.model, image_size=find(model).image_size),
        optimizer=replace(config.optimizer, learning_rate=5e-6, reference_batch=None, weight_decay=1e-8),
        # The final rate of the training would be above the highest of these.
        schedule=ScheduleConfig(epochs=30, final_rate=1e-6),
        batch=512,
    )
    return Recipe(name=name, model=model, config=tuned, start=before.name)


LVVIT_S = supervised("lvvit_s", "token_labels")
LVVIT_S_RELABEL = supervised("lvvit_s", "relabel")
LVVIT_S_PLAIN = supervised("lvvit_s", "plain_labels")


def lvvit_s(name: str, config: TrainConfig, note: str = "") -> Recipe:
    """A row about LV-ViT-S."""
    return Recipe(name=name, model="lvvit_s", config=config, note=note)


# L is at 288 pixels in Table 1 of TL.
SIZES = {"lvvit_t": "lvvit_t", "lvvit_s": "lvvit_s", "lvvit_m": "lvvit_m", "lvvit_l": "lvvit_l_288"}
COLUMNS = [
    Recipe(name=f"{name}_{kind}", model=model, config=supervised(model, kind))
    for kind in KINDS
    for name, model in SIZES.items()
]

TABLE_2 = [
    lvvit_s("tl_t2_mixtoken_token_labels", LVVIT_S),
    lvvit_s("tl_t2_mixtoken_relabel", mixed(LVVIT_S_RELABEL, MIX_TOKEN)),
    lvvit_s("tl_t2_cutmix_relabel", LVVIT_S_RELABEL),
    lvvit_s(
        "tl_t2_mixtoken_plain_labels",
        mixed(LVVIT_S_PLAIN, MIX_TOKEN),
        "no Mixup, which makes MixToken worse where tokens have labels (Table 3)",
    ),
    lvvit_s("tl_t2_cutmix_plain_labels", LVVIT_S_PLAIN, "Mixup beside CutMix, as for all class labels (TL-supp)"),
]


def augmentations(prefix: str, full: TrainConfig) -> list[Recipe]:
    """What becomes of LV-ViT-S without one augmentation, or with one more (TL Table 3, TL-v1 Table 7)."""
    without_erasing = replace(full.objective, finish=replace(full.objective.finish, erase=0.0))
    return [
        lvvit_s(f"{prefix}_all", full),
        lvvit_s(f"{prefix}_no_mixtoken", mixed(full, MixConfig(kind="none"))),
        lvvit_s(f"{prefix}_with_mixup", mixed(full, MixConfig(kind="token_and_mixup", mixup_alpha=0.8))),
        lvvit_s(f"{prefix}_no_cutout", replace(full, objective=without_erasing)),
        lvvit_s(f"{prefix}_no_randaug", replace(full, augment=replace(full.augment, policy=None))),
    ]


TEACHER = "timm/regnety_160.deit_in1k"
"""RegNetY-16GF as DeiT trained it (TL, section 4.2; CaiT, section 4.3)."""


def methods(model: Literal["deit_s", "lvvit_s"]) -> list[Recipe]:
    """How a teacher or its labels can take part (Table 4)."""
    with_tokens, plain = supervised(model, "token_labels"), supervised(model, "plain_labels")
    online = replace(with_tokens, data=CLASS_FOLDERS, objective=TokenLabelConfig(teacher=TEACHER))
    assert isinstance(plain.model, ViTConfig)
    student = replace(plain.model, distillation_token=True)
    distilled = replace(plain, model=student, objective=DistillConfig(teacher=TEACHER))
    as_offline = "all but the teacher as without one"
    configs = {
        "online_kd": (distilled, f"with a distillation token; {as_offline}"),
        "online_tl": (online, as_offline),
        "tl": (with_tokens, ""),
        "relabel": (supervised(model, "relabel"), ""),
        "vanilla": (plain, ""),
    }
    return [
        Recipe(name=f"tl_t4_{model}_{name}", model=model, config=config, note=note)
        for name, (config, note) in configs.items()
    ]


def participating(model: Literal["lvvit_s", "lvvit_m"], percent: int) -> Recipe:
    """A share of the tokens compared with their labels (Figure 4, left)."""
    objective = TokenLabelConfig(participation=percent / 100)
    config = replace(supervised(model, "token_labels"), objective=objective)
    return Recipe(name=f"tl_f4_{model}_participation_{percent}", model=model, config=config)


FIGURE_4 = [participating(model, percent) for model in ("lvvit_s", "lvvit_m") for percent in (20, 40, 60, 80, 100)] + [
    Recipe(name=f"tl_f4_annotator_{annotator}", model="lvvit_s", config=LVVIT_S, annotator=annotator)
    for annotator in PRESETS
]


def with_and_without(table: str, models: dict[str, str], note: str) -> list[Recipe]:
    """Models on token labels, and on plain ones; the rows have short names for them."""
    return [
        Recipe(name=f"tl_{table}_{short}_{kind}", model=model, config=supervised(model, kind), note=note)
        for short, model in models.items()
        for kind in ("token_labels", "plain_labels")
    ]


FIGURE_5 = with_and_without(
    "f5",
    {model: model for model in ("deit_s", "deit_b", "t2t_vit_14", "t2t_vit_19", "t2t_vit_24", "lvvit_s", "lvvit_m")},
    "which seven models is ours, as the text names three families",
)
TABLE_5 = with_and_without(
    "t5",
    {
        "mixer_s16": "timm/mixer_s16_224",
        "mixer_b16": "timm/mixer_b16_224",
        "mixer_l16": "timm/mixer_l16_224",
        "resnest50": "timm/resnest50d",
    },
    "by the default hyper-parameters, as the text names no others for these models",
)


S, M, L_288, L_448 = (
    Recipe(name=f"tl_t6_{model}", model=model, config=supervised(model, "token_labels"))
    for model in ("lvvit_s", "lvvit_m", "lvvit_l_288", "lvvit_l_448")
)
TABLE_6 = [
    S,
    larger("tl_t6_lvvit_s_384", S, "lvvit_s_384"),
    M,
    larger("tl_t6_lvvit_m_384", M, "lvvit_m_384"),
    L_288,
    larger("tl_t6_lvvit_l_288_to_448", L_288, "lvvit_l_448"),
    L_448,
    larger("tl_t6_lvvit_l_448_to_512", L_448, "lvvit_l_512"),
]

TABLE_4 = [*methods("deit_s"), *methods("lvvit_s")]
TOKEN_LABELING = [
    *COLUMNS,
    *TABLE_2,
    *augmentations("tl_t3", LVVIT_S),
    *TABLE_4,
    *FIGURE_4,
    *FIGURE_5,
    *TABLE_5,
    *TABLE_6,
]
