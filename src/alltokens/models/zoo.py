"""Every published model by name, one line each; rows of ablation tables are in ablations.py."""

from dataclasses import replace
from fnmatch import fnmatchcase

from alltokens.errors import UserError, did_you_mean
from alltokens.models.ablations import ABLATIONS
from alltokens.models.config import HMLPStem, LeViTStem, LinearStem, LocalStem, ViTConfig
from alltokens.models.families import at_size, cait, deit, deit3, lvvit, parallel, t2t, vit

WIDTHS_AND_HEADS = {"ti": (192, 3), "s": (384, 6), "b": (768, 12), "l": (1024, 16)}

VIT = {
    "vit_ti": vit(192, 12, 3),
    "vit_s": vit(384, 12, 6),
    "vit_b": vit(768, 12, 12),
    "vit_l": vit(1024, 24, 16),
    "vit_ti_ls": vit(192, 12, 3, layer_scale=True),
    "vit_s_ls": vit(384, 12, 6, layer_scale=True),
    "vit_b_ls": vit(768, 12, 12, layer_scale=True),
    "vit_l_ls": vit(1024, 24, 16, layer_scale=True),
}

DEIT = {
    "deit_ti": deit(192, 12, 3),
    "deit_s": deit(384, 12, 6),
    "deit_b": deit(768, 12, 12),
    "deit_ti_distilled": deit(192, 12, 3, distilled=True),
    "deit_s_distilled": deit(384, 12, 6, distilled=True),
    "deit_b_distilled": deit(768, 12, 12, distilled=True),
}

# Not of these papers, but of their authors, and much used as a start.
DEIT3 = {
    "deit3_s": deit3(384, 12, 6),
    "deit3_b": deit3(768, 12, 12),
    "deit3_l": deit3(1024, 24, 16),
}

LVVIT = {
    "lvvit_t": lvvit(240, 12, 4),
    "lvvit_s": lvvit(384, 16, 6, divide_by=2.0),
    "lvvit_m": lvvit(512, 20, 8, divide_by=2.0, drop_path=0.2),
    "lvvit_l": lvvit(768, 24, 12, divide_by=3.0, drop_path=0.3, stem_channels=128),
}

# Gains and drop rates: CaiT, Table 4.
CAIT = {
    "cait_xxs24": cait(192, 24, gain=1e-5, drop_path=0.05),
    "cait_xxs36": cait(192, 36, gain=1e-6, drop_path=0.1),
    "cait_xs24": cait(288, 24, gain=1e-5, drop_path=0.05),
    "cait_xs36": cait(288, 36, gain=1e-6, drop_path=0.1),
    "cait_s24": cait(384, 24, gain=1e-5, drop_path=0.1),
    "cait_s36": cait(384, 36, gain=1e-6, drop_path=0.2),
    "cait_s48": cait(384, 48, gain=1e-6, drop_path=0.3),
    "cait_m24": cait(768, 24, gain=1e-5, drop_path=0.2),
    "cait_m36": cait(768, 36, gain=1e-6, drop_path=0.3),
    "cait_m48": cait(768, 48, gain=1e-6, drop_path=0.4),
}

T2T = {
    "t2t_vit_14": t2t(384, 14, 6),
    "t2t_vit_19": t2t(448, 19, 7),
    "t2t_vit_24": t2t(512, 24, 8),
    "t2t_vit_t_14": t2t(384, 14, 6, transformer=True),
    "t2t_vit_t_19": t2t(448, 19, 7, transformer=True),
    "t2t_vit_t_24": t2t(512, 24, 8, transformer=True),
}

# 3T, Table 7: ViT-B with other stems, and one block more.
STEMS = {
    "vit_b_linear_bn": replace(VIT["vit_b"], stem=LinearStem(norm="batch")),
    "vit_b_linear_gelu": replace(VIT["vit_b"], stem=LinearStem(activation="gelu")),
    "vit_b_linear_bn_gelu": replace(VIT["vit_b"], stem=LinearStem(norm="batch", activation="gelu")),
    "vit_b_levit_bn": replace(VIT["vit_b"], stem=LeViTStem(norm="batch")),
    "vit_b_levit_ln": replace(VIT["vit_b"], stem=LeViTStem(norm="layer")),
    "vit_b_local": replace(VIT["vit_b"], stem=LocalStem()),
    "vit_b_hmlp_bn": replace(VIT["vit_b"], stem=HMLPStem(norm="batch")),
    "vit_b_hmlp_ln": replace(VIT["vit_b"], stem=HMLPStem(norm="layer")),
    "vit_b13": vit(768, 13, 12),
}

# 3T, Figures 1 to 3 and Tables 2 to 4, in its notation depth x branches. The axis of Figure 3 is not in the paper's
# text: 12 to 60 blocks in steps of 12, with one and two branches, covers every count that its figures and tables name.
PARALLEL_SHAPES = {
    "ti": "24x1 12x2",
    "s": "12x1 6x2 24x1 12x2 36x1 18x2 12x3 9x4 48x1 24x2 60x1 30x2 20x3 15x4",
    "b": "12x1 6x2 24x1 12x2 36x1 18x2 12x3 9x4 48x1 24x2 60x1 30x2",
    "l": "24x1 12x2",
}

# Trained with LayerScale in Figure 2 (L), Table 2 (B) and Table 3; the small ones are timm's.
LAYER_SCALE_SHAPES = {"s": "36x1 18x2", "b": "36x1 18x2", "l": "24x1 12x2"}


def parallel_models(shapes: dict[str, str], *, layer_scale: bool) -> dict[str, ViTConfig]:
    """vit_{size}_{depth}x{branches} for each shape of each size, with `_ls` after it for LayerScale."""
    models = {}
    for size, listed in shapes.items():
        width, heads = WIDTHS_AND_HEADS[size]
        for shape in listed.split():
            depth, branches = map(int, shape.split("x"))
            config = parallel(width, depth, heads, branches=branches, layer_scale=layer_scale)
            models[f"vit_{size}_{shape}" + "_ls" * layer_scale] = config
    return models


def larger(models: dict[str, ViTConfig], *sizes: int) -> dict[str, ViTConfig]:
    """The same models for larger images, the size appended to the name."""
    return {f"{name}_{size}": at_size(config, size) for name, config in models.items() for size in sizes}


MODELS: dict[str, ViTConfig] = {
    **VIT,
    **larger(VIT, 384),
    **DEIT,
    **larger(DEIT, 384),
    **DEIT3,
    **larger(DEIT3, 384),
    **LVVIT,
    **larger(LVVIT, 288, 384, 448, 512),
    **CAIT,
    **larger(CAIT, 384, 448),
    **T2T,
    **parallel_models(PARALLEL_SHAPES, layer_scale=False),
    **parallel_models(LAYER_SCALE_SHAPES, layer_scale=True),
    **STEMS,
    **ABLATIONS,
}

MEAN = (0.485, 0.456, 0.406)
"""ImageNet's mean of each channel, which all models here are normalised with."""
STANDARD_DEVIATION = (0.229, 0.224, 0.225)
"""ImageNet's standard deviation of each channel."""
INTERPOLATION = "bicubic"
"""How images are resized for evaluation."""

# Longest matching prefix wins. CaiT's ablations precede its change of crop (Tables 8 and 10); 3T follows A2.
CROP_RATIOS = {
    "vit": 0.95,
    "deit": 0.9,
    "lvvit_t": 0.9,
    "lvvit_s": 0.9,
    "lvvit_m": 1.0,
    "lvvit_l": 1.0,
    "tlv1": 0.9,
    "cait": 1.0,
    "cait_t": 0.875,
    "cait_a_": 0.875,
    "cait_b_": 0.875,
    "cait_b_distillation_token": 1.0,
    "t2t_vit": 0.9,
    **{name: 1.0 for name in MODELS if name.startswith("deit") and name.endswith("_384")},
}


def find(name: str) -> ViTConfig:
    """The architecture of that name."""
    if name not in MODELS:
        raise UserError(f"unknown model '{name}'{did_you_mean(name, MODELS)}")
    return MODELS[name]


def list_models(glob: str = "*") -> list[str]:
    """Names that match the pattern, sorted."""
    return sorted(name for name in MODELS if fnmatchcase(name, glob))


def crop_ratio(name: str) -> float:
    """Side of the evaluation crop over the shorter side of the resized image."""
    find(name)
    return CROP_RATIOS[max((prefix for prefix in CROP_RATIOS if name.startswith(prefix)), key=len)]
