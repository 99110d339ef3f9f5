"""About how much memory a process needs to train a config, from the config alone."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from alltokens.models.loading import build
from alltokens.models.weights import Model
from alltokens.train.config import TrainConfig
from alltokens.train.machine import recompute_blocks

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
    """By the rule that all the backward pass needs is kept, attention weights too, in the precision of the run; of what
    is computed again, the inputs of all blocks and the rest of one."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.average + self.activations


def memory_of(config: TrainConfig, processes: int = 1, *, shard: bool = False, recompute: bool = False) -> Memory:
    """Of one of the processes, whether they share out the weights, and whether they compute blocks again."""
    with torch.device("meta"):
        model = build(config.model).train()
    # Weights and all that belongs to them are float32 at least, whatever autocast computes in.
    whole = sum(parameter.numel() for parameter in model.parameters()) * max(4, BYTES[config.precision])
    weights = -(-whole // processes) if shard else whole
    images = -(-config.batch // (processes * config.accumulate))
    count = kept_when_recomputed if recompute else kept_for_backward
    return Memory(
        weights=weights,
        gradients=weights,
        optimizer=MOMENTS[config.optimizer.kind] * weights,
        average=weights if config.average else 0,
        activations=count(model, images) * BYTES[config.precision],
    )


def kept_for_backward(model: Model, images: int) -> int:
    """Numbers that the backward pass needs of a batch."""
    return kept_by(model, images).numbers


def kept_when_recomputed(model: Model, images: int) -> int:
    """The same where what happens in a block is computed again: the inputs of all blocks, and all of the largest."""
    everything = kept_by(model, images)
    recompute_blocks(model)
    inputs = kept_by(model, images)
    # What is computed again saves nothing by itself; the largest module of which that is true is a whole block.
    again = [everything.most[name] for name, most in inputs.most.items() if most == 0]
    return inputs.numbers + max(again)


class Kept:
    """Counts the numbers that autograd saves of a forward pass, each tensor once, in all and by module."""

    def __init__(self, model: Model) -> None:
        self.numbers = 0
        self.most: dict[str, int] = {}
        """What a call of each module saved, of several the most."""
        self.weights = {place_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
        # With the tensors themselves, as the place of one that is gone may be given to another.
        self.tensors: dict[int, Tensor] = {}

    def keep(self, tensor: Tensor) -> Tensor:
        """Count a tensor, unless it is a weight or was there before."""
        place = place_of(tensor)
        if place not in self.weights and place not in self.tensors:
            self.tensors[place] = tensor
            self.numbers += tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    @contextmanager
    def by_module(self, model: Model) -> Iterator[None]:
        """Note what each module saves while it is at work."""
        before: dict[str, int] = {}

        def enter(name: str, *_call: Any) -> None:
            before[name] = self.numbers

        def leave(name: str, *_call: Any) -> None:
            self.most[name] = max(self.most.get(name, 0), self.numbers - before[name])

        with ExitStack() as hooks:
            for name, module in model.named_modules():
                hooks.enter_context(module.register_forward_pre_hook(partial(enter, name)))
                hooks.enter_context(module.register_forward_hook(partial(leave, name)))
            yield


def kept_by(model: Model, images: int) -> Kept:
    """What a forward pass of a batch saves, counted on the meta device."""
    kept, config = Kept(model), model.config
    # Batch norm refuses one image that it has shrunk to a single cell.
    batch = torch.empty(max(2, images), config.channels, *config.image_size, device="meta")
    with kept.by_module(model), torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda tensor: tensor):
        model(batch)
    return kept


def place_of(tensor: Tensor) -> int:
    """The same for all views of a tensor; on the meta device none has an address."""
    return tensor.untyped_storage()._cdata
