"""The first version of the token labeling paper (TL-v1): the way from DeiT-S to LV-ViT-S, and its ablations."""

from alltokens.models.ablations import TLV1_TABLE_3, TLV1_TABLE_4, TLV1_TABLE_5, TLV1_TABLE_9
from alltokens.recipes.recipe import Recipe
from alltokens.recipes.token_labeling import (
    FINAL_RATE,
    LVVIT_S,
    LVVIT_S_RELABEL,
    MIX_TOKEN,
    Kind,
    augmentations,
    fine_tuned,
    lvvit_s,
    mixed,
    supervised,
)


def row(model: str) -> Recipe:
    """A model of an ablation table on class labels, or on what its name says; the recipe has its name."""
    kind: Kind = "relabel" if model.endswith("relabel") else "plain_labels"
    return Recipe(name=model, model=model, config=supervised(model, kind))


TABLE_3 = [
    *[row(model) for model in TLV1_TABLE_3],
    lvvit_s("tlv1_t3_token_labels", LVVIT_S),
    Recipe(
        name="tlv1_t3_384",
        model="lvvit_s_384",
        config=fine_tuned(LVVIT_S, 384),
        start="tlv1_t3_token_labels",
        note=FINAL_RATE,
    ),
]
TABLE_6 = [
    lvvit_s("tlv1_t6_mixtoken_token_labels", LVVIT_S),
    lvvit_s("tlv1_t6_mixtoken_relabel", mixed(LVVIT_S_RELABEL, MIX_TOKEN)),
    lvvit_s("tlv1_t6_cutmix_relabel", LVVIT_S_RELABEL),
]
TL_V1 = [
    *TABLE_3,
    *[row(model) for model in (*TLV1_TABLE_4, *TLV1_TABLE_5)],
    *TABLE_6,
    *augmentations("tlv1_t7"),
    *[row(model) for model in TLV1_TABLE_9],
]
