"""About how much memory a process needs to train a config, from the config alone."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from alltokens.models.loading import build
from alltokens.train.config import TrainConfig

BYTES = {"bf16": 2, "fp16": 2, "float32": 4, "float64": 8}
"""Of a number that the model computes, by precision."""
MOMENTS = {"adamw": 2, "lamb": 2, "sgd": 1}
"""Numbers that an optimizer keeps of a weight."""


@dataclass(frozen=True)
class Memory:
    """Bytes by what they hold."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    """By the rule that all the backward pass needs is kept, attention weights too, in the precision of the run."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.average + self.activations


def memory_of(config: TrainConfig, processes: int = 1) -> Memory:
    """Of one of the processes, none of which shards or recomputes anything."""
    with torch.device("meta"):
        model = build(config.model).train()
    # Weights and all that belongs to them are float32 at least, whatever autocast computes in.
    weights = sum(parameter.numel() for parameter in model.parameters()) * max(4, BYTES[config.precision])
    images = -(-config.batch // (processes * config.accumulate))
    return Memory(
        weights=weights,
        gradients=weights,
        optimizer=MOMENTS[config.optimizer.kind] * weights,
        average=weights if config.average else 0,
        activations=kept_for_backward(model, config, images) * BYTES[config.precision],
    )


def kept_for_backward(model: nn.Module, config: TrainConfig, images: int) -> int:
    """Numbers that the backward pass needs of a batch, counted on the meta device, each tensor once."""
    weights = {place_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if place_of(tensor) not in weights:
            kept[place_of(tensor)] = tensor
        return tensor

    # Batch norm refuses one image that it has shrunk to a single cell.
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.empty(max(2, images), config.model.channels, *config.model.image_size, device="meta"))
    return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in kept.values())


def place_of(tensor: Tensor) -> int:
    """The same for all views of a tensor; on the meta device none has an address."""
    return tensor.untyped_storage()._cdata
