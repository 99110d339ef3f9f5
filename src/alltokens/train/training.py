"""What changes from step to step: weights, optimizer and average, and one step of theirs."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from alltokens.data.batch import Batch
from alltokens.models.loading import build
from alltokens.models.weights import Model
from alltokens.objectives.classify import Classification, ClassifyConfig
from alltokens.objectives.mixing import as_model
from alltokens.objectives.token_label import TokenLabelConfig, TokenLabeling
from alltokens.processes import Processes
from alltokens.train.average import Average, decay_of_step
from alltokens.train.checkpoint import Checkpoint, optimizer_tensors, restore_optimizer
from alltokens.train.config import TrainConfig
from alltokens.train.optimizer import (
    FiniteCheck,
    build_optimizer,
    clip_gradients,
    peak_learning_rate,
    set_learning_rate,
)
from alltokens.train.schedule import learning_rate
from alltokens.train.sync_norm import synchronize_norms

Objective = TokenLabeling | Classification


@dataclass(frozen=True)
class Machine:
    """What does the work; the result does not depend on it beyond rounding."""

    device: torch.device
    workers: int
    """Processes that decode and augment."""
    compile: bool = False
    """Whether the objective is compiled."""


class Training:
    """A model on its way, with all that is needed to go on."""

    def __init__(self, config: TrainConfig, steps_per_epoch: int, machine: Machine, processes: Processes) -> None:
        self.config, self.steps_per_epoch = config, steps_per_epoch
        self.device, self.processes = machine.device, processes
        torch.manual_seed(config.seed)
        model = build(config.model).to(machine.device, torch.float64 if config.precision == "float64" else None)
        self.objective = build_objective(model, config.objective)
        if processes.count > 1:
            synchronize_norms(self.objective)
        self.optimizer = build_optimizer(self.objective, config.optimizer, config.batch)
        self.average = Average(model) if config.average else None
        self.forward = wrapped(self.objective, machine, processes)
        self.step = 0
        self.gradient: FiniteCheck | None = None

    @property
    def model(self) -> Model:
        """What is evaluated and kept: the average, where there is one."""
        return self.objective.model if self.average is None else as_model(self.average.module)

    def rate(self) -> float:
        """The learning rate of the next step."""
        peak = peak_learning_rate(self.config.optimizer, self.config.batch)
        return learning_rate(self.config.schedule, peak, self.step, self.steps_per_epoch)

    def take_step(self, parts: Sequence[Batch]) -> dict[str, float]:
        """One step on the parts of this process's share of a batch; its losses, and the length of earlier gradients."""
        config = self.config
        set_learning_rate(self.optimizer, self.rate())
        losses: list[dict[str, Tensor]] = []
        for place, batch in enumerate(parts):
            # All that a model draws, such as drop path, comes from the step alone: there is no state to restore.
            torch.manual_seed(step_seed(config.seed, self.step, place, self.processes.rank))
            waits = isinstance(self.forward, DistributedDataParallel) and place + 1 < len(parts)
            with self.forward.no_sync() if waits else nullcontext(), self.autocast():  # type: ignore[operator]
                answer = self.forward(batch.to(self.device))
            losses.append({"loss": answer.total.detach(), **answer.parts})
            if place + 1 == len(parts):
                # On its way to the host while the backward pass runs, and there before the step that it may forbid.
                check = FiniteCheck(self.step, mean_of(losses))
            (answer.total / len(parts)).backward()
        norm = clip_gradients(self.objective.parameters(), config.optimizer.clip)
        values = check.read() | self.settle()
        self.gradient = FiniteCheck(self.step, {"gradient": norm})
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None and config.average is not None:
            decay = decay_of_step(config.average, config.batch, self.step)
            self.average.update(self.objective.model, decay)
        self.step += 1
        return values

    def settle(self) -> dict[str, float]:
        """The length of the last gradient, once: its own step does not wait for it, but no weights are saved before."""
        values = {} if self.gradient is None else self.gradient.read()
        self.gradient = None
        return values

    def autocast(self) -> torch.autocast:
        """bf16 where the config asks for it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def checkpoint(self, counters: dict[str, int | float | str]) -> Checkpoint:
        """Where it stands."""
        return Checkpoint(
            model=self.model,
            weights=self.objective.state_dict(),
            optimizer=optimizer_tensors(self.optimizer, self.objective),
            counters={"step": self.step, **counters},
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from there."""
        self.objective.load_state_dict(checkpoint.weights)
        restore_optimizer(self.optimizer, self.objective, checkpoint.optimizer)
        if self.average is not None:
            self.average.module.load_state_dict(checkpoint.model.state_dict())
        self.step = int(checkpoint.counters["step"])


def build_objective(model: nn.Module, config: TokenLabelConfig | ClassifyConfig) -> Objective:
    """The objective of a config, with the model in it."""
    return TokenLabeling(model, config) if isinstance(config, TokenLabelConfig) else Classification(model, config)


def wrapped(objective: Objective, machine: Machine, processes: Processes) -> nn.Module:
    """The objective as it is called: with gradients averaged over processes, and compiled."""
    forward: nn.Module = objective
    if processes.count > 1:
        # Statistics of norms are the same in every process already; torch 2.15 gave this argument another name.
        renamed = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
        argument: Any = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        forward = DistributedDataParallel(objective, **argument)
    if machine.compile:
        forward.compile()
    return forward


def mean_of(several: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Means over the parts of a step."""
    return {name: torch.stack([losses[name] for losses in several]).mean() for name in several[0]}


def step_seed(seed: int, step: int, part: int, rank: int) -> int:
    """For what a model draws in one part of a step."""
    return int.from_bytes(blake2b(f"{seed} {step} {part} {rank}".encode(), digest_size=8).digest(), "little") >> 1
