"""Our own weight files: safetensors with the model's config inside."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from alltokens.errors import UserError
from alltokens.files import write_atomically
from alltokens.models.config import ViTConfig
from alltokens.models.vit import VisionTransformer
from alltokens.plain import from_plain, to_plain

CONFIG_KEY = "alltokens_config"


def save_model(model: VisionTransformer, path: str | Path) -> None:
    """Write the model's weights and config as one file."""
    state = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    metadata = {"format": "pt", CONFIG_KEY: json.dumps(to_plain(model.config))}
    write_atomically(path, lambda file: file.write(save(state, metadata)))


def load_model(path: str | Path) -> VisionTransformer:
    """The model that `save_model` wrote, in training mode."""
    config, state = read_weights(path)
    with torch.device("meta"):
        model = VisionTransformer(config)
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    found = {key: tuple(tensor.shape) for key, tensor in state.items()}
    differing = sorted({*expected.items()} ^ {*found.items()})
    if differing:
        key, shape = differing[0]
        raise UserError(f"'{path}' does not hold the model its config describes; the first difference is {key} {shape}")
    model.load_state_dict(state, assign=True)
    return model


def read_weights(path: str | Path) -> tuple[ViTConfig, dict[str, Tensor]]:
    """Config and state dict of one of our files; nothing in it is executed."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise UserError(f"cannot read '{path}' as safetensors: {error}") from error
    if CONFIG_KEY not in metadata:
        raise UserError(f"'{path}' has no alltokens config inside; give a file that save_model wrote")
    try:
        config = json.loads(metadata[CONFIG_KEY])
    except json.JSONDecodeError as error:
        raise UserError(f"'{path}' has an alltokens config that is not JSON; write or download it again") from error
    return from_plain(ViTConfig, config), state
