"""The learning rate as a function of the step, so that resuming restores a number and no object."""

import math
from dataclasses import dataclass
from typing import Literal

from alltokens.errors import require


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate moves over a run; the defaults are token labeling's (TL-supp, Table 1)."""

    kind: Literal["cosine", "linear"] = "cosine"
    """The way down from the optimizer's learning rate to the final one."""
    epochs: int = 300
    """Epochs until the final rate is reached, warm-up included."""
    warmup_epochs: float = 5.0
    """Epochs of rising in a straight line; part of an epoch will do."""
    cooldown_epochs: int = 0
    """Epochs at the final rate that come on top."""
    warmup_rate: float = 1e-6
    """Learning rate of the very first step, where there is a warm-up."""
    final_rate: float = 1e-5
    """Learning rate at the end."""

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"epochs must be at least 1; got epochs={self.epochs}")
        require(
            0 <= self.warmup_epochs < self.epochs,
            f"warmup_epochs must be at least 0 and below epochs={self.epochs}; got warmup_epochs={self.warmup_epochs}",
        )
        require(
            self.cooldown_epochs >= 0, f"cooldown_epochs must be at least 0; got cooldown_epochs={self.cooldown_epochs}"
        )
        for name in ("warmup_rate", "final_rate"):
            rate = getattr(self, name)
            require(math.isfinite(rate) and rate >= 0, f"{name} must be at least 0; got {name}={rate}")

    @property
    def total_epochs(self) -> int:
        """How many epochs a run has."""
        return self.epochs + self.cooldown_epochs


def learning_rate(config: ScheduleConfig, peak: float, step: int, steps_per_epoch: int) -> float:
    """The rate of a step, counted from 0; `peak` is the optimizer's own.

    As in timm, the way down is timed from step 0: where the warm-up ends it is already a little below the peak.
    """
    for name in ("warmup_rate", "final_rate"):
        rate = getattr(config, name)
        require(
            rate <= peak,
            f"{name} must not be above the learning rate of this batch size, {peak:g}; got {name}={rate:g}",
        )
    last, warmup = config.epochs * steps_per_epoch, round(config.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return config.warmup_rate + (peak - config.warmup_rate) * step / warmup
    done = min(1.0, step / last)
    left = (1 + math.cos(math.pi * done)) / 2 if config.kind == "cosine" else 1 - done
    return config.final_rate + (peak - config.final_rate) * left
