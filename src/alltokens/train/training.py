"""What changes from step to step: weights, optimizer and average, and one step of theirs."""

from collections.abc import Sequence
from hashlib import blake2b
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from alltokens.annotate.annotator import Annotator
from alltokens.data.batch import Batch
from alltokens.errors import require
from alltokens.objectives.classify import Classification, ClassifyConfig
from alltokens.objectives.distill import Distillation, DistillConfig
from alltokens.objectives.teachers import Teacher, open_online_annotator, open_teacher
from alltokens.objectives.token_label import TokenLabelConfig, TokenLabeling
from alltokens.processes import Processes
from alltokens.train.average import Average, decay_of_step
from alltokens.train.checkpoint import Checkpoint, optimizer_tensors, restore_optimizer
from alltokens.train.config import TrainConfig
from alltokens.train.initial import first_model
from alltokens.train.machine import Machine
from alltokens.train.optimizer import (
    FiniteCheck,
    build_optimizer,
    clip_gradients,
    hold_back,
    peak_learning_rate,
    set_learning_rate,
)
from alltokens.train.precision import Precision
from alltokens.train.schedule import learning_rate
from alltokens.train.sharding import blocks_of, gathered, gathered_model, load_whole, reducing, shard
from alltokens.train.sync_norm import synchronize_norms

Objective = TokenLabeling | Classification | Distillation
ObjectiveConfig = TokenLabelConfig | ClassifyConfig | DistillConfig


class Training:
    """A model on its way, with all that is needed to go on."""

    def __init__(self, config: TrainConfig, steps_per_epoch: int, machine: Machine, processes: Processes) -> None:
        self.config, self.steps_per_epoch = config, steps_per_epoch
        self.device, self.processes = machine.device, processes
        torch.manual_seed(config.seed)
        model = first_model(config.model, config.initial)
        self.precision = Precision(config.precision, machine.device)
        model = machine.place(model, self.precision.weights)
        teacher = teacher_of(config.objective, config.model.image_size, machine.device)
        self.objective = build_objective(model, config.objective, teacher)
        if processes.count > 1:
            synchronize_norms(self.objective)
        self.average = Average(model) if config.average else None
        self.kept = build_objective(self.average.module, config.objective, teacher) if self.average else self.objective
        """What is evaluated and kept: with the averaged model, where there is one."""
        if machine.shard:
            objectives = [self.objective, self.kept] if self.average else [self.objective]
            shard(objectives, machine.device, processes)
        self.trained = [parameter for parameter in self.objective.parameters() if parameter.requires_grad]
        self.optimizer = build_optimizer(self.objective, config.optimizer, config.batch)
        self.graphs = uses_graphs(machine, processes)
        self.forward = wrapped(self.objective, machine, processes, self.graphs)
        self.stream = torch.cuda.Stream(machine.device) if machine.device.type == "cuda" else None
        """For what the device does to a batch before it is trained on."""
        self.step = 0
        self.check: FiniteCheck | None = None

    def rate(self) -> float:
        """The learning rate of the next step."""
        peak = peak_learning_rate(self.config.optimizer, self.config.batch)
        return learning_rate(self.config.schedule, peak, self.step, self.steps_per_epoch)

    def take_step(self, parts: Sequence[Batch]) -> dict[str, float]:
        """One step on the parts of this process's share of a batch; what there is to report of the step before."""
        config, scaler = self.config, self.precision.scaler
        set_learning_rate(self.optimizer, self.rate())
        if self.graphs:
            # What the graphs of the step before wrote may be written over.
            torch.compiler.cudagraph_mark_step_begin()
        losses: list[dict[str, Tensor]] = []
        for place, batch in enumerate(parts):
            # All that a model draws, such as drop path, comes from the step alone: there is no state to restore.
            torch.manual_seed(step_seed(config.seed, self.step, place, self.processes.rank))
            last = place + 1 == len(parts)
            batch = self.brought(batch)
            with reducing(self.forward, last), self.precision.autocast():
                answer = self.forward(batch)
            losses.append({"loss": answer.total.detach(), **answer.parts})
            scaler.scale(answer.total / len(parts)).backward()
        scaler.unscale_(self.optimizer)
        norm = clip_gradients(self.trained, config.optimizer.clip)
        check = FiniteCheck(self.step, {**mean_of(losses), "gradient": self.precision.judged(norm)})
        # The device itself keeps what is not finite out of the weights; the host hears of it a step later.
        hold_back(self.optimizer, check.broken)
        values = self.settle()
        self.check = check
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()
        if self.average is not None and config.average is not None:
            decay = decay_of_step(config.average, config.batch, self.step)
            self.average.update(decay)
        self.step += 1
        return values

    def brought(self, batch: Batch) -> Batch:
        """The batch on the device, augmented; a GPU does both while it is at the step before."""
        if self.stream is None:
            return batch.to(self.device).augmented()
        with torch.cuda.stream(self.stream):
            batch = batch.to(self.device).augmented()
        now = torch.cuda.current_stream(self.device)
        now.wait_stream(self.stream)
        return batch.with_each(lambda part: in_use(part, now))

    def settle(self) -> dict[str, float]:
        """What there is to report of the last step, once: it does not wait for it, but no weights are saved before."""
        values = {} if self.check is None else self.check.read()
        self.check = None
        return values

    def checkpoint(self, counters: dict[str, int | float | str]) -> Checkpoint:
        """Where it stands; every process must ask, and the first has it."""
        return Checkpoint(
            model=gathered_model(self.kept.model),
            weights=gathered(self.objective.state_dict()),
            optimizer=gathered(optimizer_tensors(self.optimizer, self.objective)),
            counters={"step": self.step, **self.precision.counters(), **counters},
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from there."""
        load_whole(self.objective, checkpoint.weights)
        restore_optimizer(self.optimizer, self.objective, checkpoint.optimizer)
        if self.average is not None:
            load_whole(self.average.module, checkpoint.model.state_dict())
        self.precision.restore(checkpoint.counters)
        self.step = int(checkpoint.counters["step"])


def teacher_of(
    config: ObjectiveConfig, image_size: tuple[int, int], device: torch.device
) -> Teacher | Annotator | None:
    """The teacher that a config names, where it works."""
    teacher: Teacher | Annotator | None = None
    match config:
        case DistillConfig():
            teacher = open_teacher(config.teacher, config.teacher_weights, image_size)
            place(teacher.model, device)
        case TokenLabelConfig(teacher=str() as name):
            teacher = open_online_annotator(name, config.teacher_weights, image_size)
            place(teacher.module, device)
    return teacher


def place(network: nn.Module, device: torch.device) -> None:
    """Move it; convolutions of GPUs are fastest with channels last."""
    network.to(device)
    if device.type == "cuda":
        network.to(memory_format=torch.channels_last)


def build_objective(model: nn.Module, config: ObjectiveConfig, teacher: Teacher | Annotator | None = None) -> Objective:
    """The objective of a config, with the model in it and its teacher beside it."""
    match config:
        case TokenLabelConfig():
            assert teacher is None or isinstance(teacher, Annotator)
            return TokenLabeling(model, config, teacher)
        case DistillConfig():
            assert isinstance(teacher, Teacher)
            return Distillation(model, config, teacher)
        case ClassifyConfig():
            return Classification(model, config)


def wrapped(objective: Objective, machine: Machine, processes: Processes, graphs: bool) -> nn.Module:
    """The objective as it is called: with gradients averaged over processes, and compiled."""
    forward: nn.Module = objective
    if processes.count > 1 and not machine.shard:
        # Statistics of norms are the same in every process already; torch 2.15 gave this argument another name.
        renamed = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
        argument: Any = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        forward = DistributedDataParallel(objective, **argument)
    if machine.compile:
        # Around the blocks of a sharded objective weights come and go, which cannot be compiled.
        parts = blocks_of(objective) if machine.shard else [forward]
        require(
            bool(parts), "sharded models are compiled block by block, and this one has no blocks; leave out --compile"
        )
        for part in parts:
            part.compile(mode="reduce-overhead" if graphs else None)
    return forward


def uses_graphs(machine: Machine, processes: Processes) -> bool:
    """Whether a compiled step is handed to the GPU as a whole: kernel by kernel, the host is as slow as the GPU."""
    return machine.compile and machine.device.type == "cuda" and processes.count == 1 and not machine.shard


def in_use(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    """The tensor, whose memory the stream that made it leaves alone until the other is done with it."""
    tensor.record_stream(stream)
    return tensor


def mean_of(several: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Means over the parts of a step."""
    if len(several) == 1:
        return several[0]
    return {name: torch.stack([losses[name] for losses in several]).mean() for name in several[0]}


def step_seed(seed: int, step: int, part: int, rank: int) -> int:
    """For what a model draws in one part of a step."""
    return int.from_bytes(blake2b(f"{seed} {step} {part} {rank}".encode(), digest_size=8).digest(), "little") >> 1
