"""What does the work of a run, and how; the result does not depend on it beyond rounding."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from alltokens.augment.boxes import is_fused
from alltokens.data.samples import AugmentedBy
from alltokens.errors import UserError, require
from alltokens.models.timm_model import TimmClassifier
from alltokens.models.weights import Model


@dataclass(frozen=True, kw_only=True)
class Boards:
    """Where else a run's reports are shown."""

    tensorboard: bool = False
    """As TensorBoard's curves, in the run's folder."""
    wandb: str | None = None
    """In this project of Weights & Biases."""


@dataclass(frozen=True)
class Machine:
    """A device, and how much of its memory and time a run may take."""

    device: torch.device
    workers: int
    """Processes that decode, and augment where the device does not."""
    compile: bool = False
    """Whether the objective is compiled."""
    shard: bool = False
    """Whether each process has a part of the weights alone, where it would have all of them (FSDP2)."""
    recompute: bool = False
    """Whether what happens in a block is computed again in the backward pass rather than kept in memory."""
    deterministic: bool = False
    """Whether a GPU, too, does the same each time, bit for bit; the CPU does anyway."""
    boards: Boards = Boards()
    augment: AugmentedBy | None = None
    """What resamples and recolours: the processes that decode or, in batches, the device; None is what is faster."""
    saving: float = 0.02
    """Share of the time that checkpoints may take, about; a kill costs what was done since the last."""

    def __post_init__(self) -> None:
        require(self.saving > 0, f"saving must be above 0; got saving={self.saving:g}")

    @property
    def augmented_by(self) -> AugmentedBy:
        """A GPU that is fed by its usual share of cores waits for those that augment as well."""
        return self.augment or ("device" if is_fused(self.device) else "workers")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """With this machine's own settings of torch, which are put back afterwards."""
        on_gpu, cudnn = self.device.type == "cuda", cast(Any, torch.backends.cudnn)
        workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
        require(
            not (self.deterministic and on_gpu) or workspace in (":4096:8", ":16:8"),
            "deterministic training on a GPU takes CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment; "
            f"got {workspace or 'no such variable'}",
        )
        if on_gpu and self.device.index is not None:
            # Events, and FSDP2's weights, are of the current device.
            torch.cuda.set_device(self.device)
        mode, before = torch.get_deterministic_debug_mode(), (cudnn.deterministic, cudnn.benchmark)
        if self.deterministic:
            torch.use_deterministic_algorithms(True)
            cudnn.deterministic, cudnn.benchmark = True, False
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)
            cudnn.deterministic, cudnn.benchmark = before

    def place(self, model: Model, dtype: torch.dtype | None) -> Model:
        """The model where it works, laid out and set up for it."""
        if self.recompute:
            recompute_blocks(model)
        # Convolutions of GPUs are fastest with channels last; FSDP2 takes weights in their own order alone.
        if self.device.type == "cuda" and not self.shard:
            model = model.to(memory_format=torch.channels_last)
        return model.to(self.device, dtype)

    def memory_gib(self) -> float:
        """The most that this process has taken so far, of the GPU or else of the host."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**30
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def recompute_blocks(model: Model) -> None:
    """Keep only what goes into a block, and compute the rest again in the backward pass."""
    if not isinstance(model, TimmClassifier):
        model.checkpoint_gradients = True
        return
    name, inner = model.config.name, cast(Any, model.model)
    norms = any(isinstance(part, _BatchNorm) for part in inner.modules())
    require(not norms, f"the batch norms of 'timm/{name}' would count each batch twice; train it without --recompute")
    try:
        inner.set_grad_checkpointing(True)
    except (AttributeError, AssertionError) as error:
        raise UserError(f"timm cannot compute parts of '{name}' again; train it without --recompute") from error
