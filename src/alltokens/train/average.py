"""A moving average of a model's weights, which is the model that is evaluated and kept."""

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from alltokens.errors import require
from alltokens.train.sharding import local


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """How slowly the average follows the weights; the defaults are token labeling's."""

    decay: float = 0.99992
    """Part of the average that a step of `reference_batch` images keeps."""
    reference_batch: int | None = 1024
    """Images for which the decay holds, so that it is the same for each image at any batch; None: for each step."""
    warmup: bool = False
    """Keep at most 1 - (1 + step) ** (-2 / 3): for runs too short to forget their first weights."""

    def __post_init__(self) -> None:
        require(0 < self.decay < 1, f"decay must be between 0 and 1; got decay={self.decay}")
        require(
            self.reference_batch is None or self.reference_batch >= 1,
            f"reference_batch must be at least 1, or none; got reference_batch={self.reference_batch}",
        )


def decay_of_step(config: AverageConfig, effective_batch: int, step: int) -> float:
    """What the step, counted from 0, keeps of the average."""
    images = 1.0 if config.reference_batch is None else effective_batch / config.reference_batch
    decay = config.decay**images
    # The warm-up of timm's ModelEmaV3: the first average is the model itself.
    return min(decay, 1 - (1 + step) ** (-2 / 3)) if config.warmup else decay


class Average:
    """A copy of a model, in evaluation and without gradients; `module.state_dict()` is all of its state."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.module = deepcopy(model).eval().requires_grad_(False)

    @cached_property
    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Averages and what they follow, found once, after both are sharded: it takes as long as to move them."""
        return list(zip(tensors_of(self.module), tensors_of(self.model), strict=True))

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Keep `decay` of the average of each parameter and buffer; counts are copied."""
        averages, values = [], []
        for average, value in self.pairs:
            if average.is_floating_point():
                averages.append(local(average))
                values.append(local(value))
            else:
                average.copy_(value)
        torch._foreach_lerp_(averages, values, 1 - decay)


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Parameters, then buffers, in an order that copies share."""
    return [*module.parameters(), *module.buffers()]
