"""The annotators of the token labeling paper by short names (TL, section 4.1 and Figure 4, right).

Stated there: which networks; 576 pixels and weights of ImageNet alone for NFNet-F6; 81.6 % top-1 for EfficientNet-B3,
which is AutoAugment's (`aa`) and not the adversarial or the noisy student's; JFT-300M and 88.2 % for EfficientNet-L2,
which is the noisy student's at 475 pixels and not at 800 (88.4 %). Ours: AutoAugment's weights for B4 to B7 too and,
as there are none of B8, RandAugment's (`ra`); and all other sizes, a network's own side up to whole cells, so that a
cell lies where its label is looked for. That leaves the grid as it is at the network's own side.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """A network of timm's with the tag of its weights, and the side of the square that it sees."""

    timm_name: str
    side: int


PRESETS = {
    "nfnet_f6": Preset("dm_nfnet_f6.dm_in1k", 576),
    "resnest269e": Preset("resnest269e.in1k", 416),
    "efficientnet_b3": Preset("tf_efficientnet_b3.aa_in1k", 320),
    "efficientnet_b4": Preset("tf_efficientnet_b4.aa_in1k", 384),
    "efficientnet_b5": Preset("tf_efficientnet_b5.aa_in1k", 480),
    "efficientnet_b6": Preset("tf_efficientnet_b6.aa_in1k", 544),
    "efficientnet_b7": Preset("tf_efficientnet_b7.aa_in1k", 608),
    "efficientnet_b8": Preset("tf_efficientnet_b8.ra_in1k", 672),
    "efficientnet_l2": Preset("tf_efficientnet_l2.ns_jft_in1k_475", 480),
}
