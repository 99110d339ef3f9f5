"""The first version of the token labeling paper (TL-v1): the way from DeiT-S to LV-ViT-S, and its ablations."""

from dataclasses import replace

from alltokens.models.ablations import TLV1_TABLE_3, TLV1_TABLE_4, TLV1_TABLE_5, TLV1_TABLE_9
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.recipes.recipe import Recipe
from alltokens.recipes.token_labeling import (
    LVVIT_S,
    LVVIT_S_RELABEL,
    MIX_TOKEN,
    Kind,
    augmentations,
    larger,
    lvvit_s,
    mixed,
    supervised,
)

# Rows of Table 3 add to those above them: where tokens have labels, the image keeps the score map of re-labeling.
TOKEN_LABELS = replace(LVVIT_S, objective=TokenLabelConfig(image_target="score_map"))


def row(model: str) -> Recipe:
    """A model of an ablation table on class labels, or on what its name says; the recipe has its name."""
    kind: Kind = "relabel" if model.endswith("relabel") else "plain_labels"
    return Recipe(name=model, model=model, config=supervised(model, kind))


LAST_AT_224 = lvvit_s("tlv1_t3_token_labels", TOKEN_LABELS, "the image keeps the score map of the row above")
TABLE_3 = [*[row(model) for model in TLV1_TABLE_3], LAST_AT_224, larger("tlv1_t3_384", LAST_AT_224, "lvvit_s_384")]
TABLE_6 = [
    lvvit_s("tlv1_t6_mixtoken_token_labels", TOKEN_LABELS),
    lvvit_s("tlv1_t6_mixtoken_relabel", mixed(LVVIT_S_RELABEL, MIX_TOKEN)),
    lvvit_s("tlv1_t6_cutmix_relabel", LVVIT_S_RELABEL),
]
TL_V1 = [
    *TABLE_3,
    *[row(model) for model in (*TLV1_TABLE_4, *TLV1_TABLE_5)],
    *TABLE_6,
    *augmentations("tlv1_t7", TOKEN_LABELS),
    *[row(model) for model in TLV1_TABLE_9],
]
