"""The same rule-made weights in timm's model and in ours."""

import timm
import torch
from torch import nn

from alltokens.models.config import ViTConfig
from alltokens.models.convert import from_published
from alltokens.models.vit import VisionTransformer

from .sine_rule import sine_state


def timm_twin(name: str, dtype: torch.dtype, arguments: dict[str, object] | None = None) -> nn.Module:
    """timm's model with the rule's weights, in evaluation mode."""
    with torch.device("meta"):
        model = timm.create_model(name, **(arguments or {}))
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    model.load_state_dict(sine_state(shapes, dtype), assign=True)
    return model.eval()


def our_twin(config: ViTConfig, published: dict[str, torch.Tensor]) -> VisionTransformer:
    """Our model with published weights, in evaluation mode."""
    with torch.device("meta"):
        model = VisionTransformer(config)
    model.load_state_dict(from_published(config, published), assign=True)
    return model.eval()


def largest_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).detach().abs().max())
