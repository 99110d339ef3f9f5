"""Weight files: ours are safetensors with the config inside; of others nothing is run that may lie in them."""

import json
import re
import tarfile
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from alltokens.errors import UserError, require
from alltokens.files import write_atomically
from alltokens.models.config import ViTConfig
from alltokens.models.timm_model import TimmClassifier, TimmConfig
from alltokens.models.usage import Usage
from alltokens.models.vit import VisionTransformer
from alltokens.plain import from_plain, to_plain

Model = VisionTransformer | TimmClassifier
ModelConfig = ViTConfig | TimmConfig

CONFIG_KEY = "alltokens_config"
# Of two sets of weights the averaged ones are better, and are what timm takes.
WRAPPERS = "state_dict_ema", "model_ema", "ema", "state_dict", "model_state_dict", "model"
PREFIXES = "module.", "_orig_mod.", "model."
LONGEST_SIDE = 8192
"""Of images that a model may be exported for: what a file asks for is built."""


@dataclass(frozen=True)
class Inside:
    """What our files say of themselves, so that a config also says its kind."""

    model: ModelConfig
    usage: Usage | None = None

    def __post_init__(self) -> None:
        if self.usage is not None:
            count, named = self.model.classes, len(self.usage.classes)
            require(named == count, f"usage.classes must name each of the model's {count} classes; got {named} names")


@dataclass(frozen=True)
class Exported:
    """What a file says that was exported to a layout of others'."""

    image_size: tuple[int, int] | None = None
    usage: Usage | None = None

    def __post_init__(self) -> None:
        sides = self.image_size or ()
        require(
            all(1 <= side <= LONGEST_SIDE for side in sides),
            f"image_size must be from 1 to {LONGEST_SIDE:,} pixels a side; got image_size={self.image_size}",
        )


@dataclass(frozen=True)
class WeightFile:
    """Tensors by name, the config where the file is ours, and how the model is used where it says that."""

    path: Path
    state: dict[str, Tensor]
    config: ModelConfig | None
    usage: Usage | None = None
    name: str | None = None
    """The model that it was exported as, where it says so."""
    image_size: tuple[int, int] | None = None
    """The size of images that it was exported for, where it says so."""


def save_model(model: Model, path: str | Path, usage: Usage | None = None) -> None:
    """Write the model's weights and config, and how it is used where that is known, as one file."""
    state = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    metadata = {"format": "pt", CONFIG_KEY: json.dumps(to_plain(Inside(model.config, usage)))}
    write_atomically(path, lambda file: file.write(save(state, metadata)))


def read_weights(path: str | Path) -> WeightFile:
    """Any weight file, told by its content: safetensors, or what torch.save wrote of a state dict."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"'{path}' is a folder; give a weight file, such as the model.safetensors in it")
    if not path.is_file():
        raise UserError(f"there is no weight file '{path}'")
    with path.open("rb") as file:
        start = file.read(9)
    # Eight bytes of length come before the JSON of safetensors; a suffix says little, as released files show.
    if start[8:] == b"{":
        return read_safetensors(path)
    if tarfile.is_tarfile(path):
        raise UserError(f"'{path}' is a tar archive and no weight file; unpack it and give the file inside")
    return WeightFile(path, state_dict_in(read_torch(path), path), None)


def read_safetensors(path: Path) -> WeightFile:
    """Tensors and, where the file is ours, what it says of itself."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from error
    if CONFIG_KEY not in metadata:
        said = exported(metadata, path)
        return WeightFile(path, state_dict_in(state, path), None, said.usage, metadata.get("model"), said.image_size)
    try:
        content = json.loads(metadata[CONFIG_KEY])
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{path}' has an alltokens config that is not JSON; write or download it again") from error
    try:
        inside = from_plain(Inside, content)
    except (UserError, OverflowError) as error:  # JSON's integers may be too large for a field of numbers
        raise UserError(f"'{path}' has a config inside that is not one of ours: {error}") from error
    return WeightFile(path, state, inside.model, inside.usage)


def exported(metadata: Mapping[str, str], path: Path) -> Exported:
    """What the file of an exported model says besides, if it is one: `export.scores.Record` as text."""
    numbers = {"image_size": "image_size", "crop_ratio": "crop", "mean": "mean", "standard_deviation": "std"}
    if not {*numbers, "interpolation"} <= metadata.keys():
        return Exported()
    try:
        said = {ours: json.loads(metadata[key]) for key, ours in numbers.items()}
        size, usage = said.pop("image_size"), None
        if "classes" in metadata:
            usage = said | {"interpolation": metadata["interpolation"], "classes": json.loads(metadata["classes"])}
        return from_plain(Exported, {"image_size": size, "usage": usage})
    except (ValueError, RecursionError, OverflowError) as error:
        reason = reason_of(error)
        raise UserError(f"'{path}' does not say as we do how it is used ({reason}); export it again") from error


def read_torch(path: Path) -> Any:
    """What torch.save wrote, as long as it is tensors and plain values."""
    try:
        # timm's training script keeps its arguments, a Namespace of plain values, beside the weights.
        # An open file, because torch goes by the suffix of a path.
        with torch.serialization.safe_globals([Namespace]), path.open("rb") as file:
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch raise anything, KeyError and MemoryError included
        unsafe = re.search(r"GLOBAL (\S+)", str(error))
        if unsafe is None:
            raise damaged(path, error) from error
        raise UserError(
            f"'{path}' holds more than tensors ({unsafe[1]}), which could run code, so it is not read; "
            "save its state dict alone"
        ) from error


def damaged(path: Path, error: Exception) -> UserError:
    """The sentence for a file that cannot be read."""
    return UserError(f"'{path}' is damaged or no weight file ({reason_of(error)}); write or download it again")


def reason_of(error: Exception) -> str:
    """Its beginning: what stands in a file may be long."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def state_dict_in(content: Any, path: Path) -> dict[str, Tensor]:
    """The tensors inside the wrappings that training scripts add, names without the prefixes that wrappers add."""
    while isinstance(content, Mapping):
        inner = [content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)]
        if not inner:
            break
        content = inner[0]
    if not isinstance(content, Mapping) or not content:
        raise UserError(f"'{path}' holds no state dict but {type(content).__name__}; give a file of named tensors")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor) or value.layout != torch.strided:
            raise UserError(f"'{path}' holds no state dict: {key!r} is no dense tensor; give a file of named tensors")
    state = dict(content)
    while prefix := next((prefix for prefix in PREFIXES if all(key.startswith(prefix) for key in state)), None):
        state = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
    return state
