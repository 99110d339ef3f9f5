"""Batch norms whose statistics are of the whole batch, however many processes share it, on the CPU too."""

from typing import Any

import torch
from timm.layers import BatchNormAct2d, SyncBatchNormAct
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from alltokens.errors import UserError
from alltokens.shapes import Float


def synchronize_norms(module: nn.Module) -> None:
    """Make the batch norms in a module count the batches of all processes; names and values stay.

    A norm changes its class alone, as torch's fully_shard does it, so that hooks, flags and sharing stay as well.
    """
    for name, norm in module.named_modules():
        if not isinstance(norm, _BatchNorm) or type(norm) in DONE:
            continue
        if type(norm) not in SYNCHRONIZED:
            raise UserError(
                f"'{name}' is a {type(norm).__name__}, which cannot be synchronised over processes; "
                "train this model in one process"
            )
        on_cpu, on_gpu = SYNCHRONIZED[type(norm)]
        norm.__class__ = on_gpu if any(x.is_cuda for x in norm.state_dict().values()) else on_cpu
        norm.process_group = None  # type: ignore[assignment]  # an attribute of torch's class


class SynchronizedNorm(_BatchNorm):
    """What torch's SyncBatchNorm is for tensors on a GPU; it refuses those on the CPU, and DDP refuses it there."""

    def _check_input_dim(self, x: Tensor) -> None:
        """Any number of dimensions."""

    def forward(self, x: Float[Tensor, "b c *size"]) -> Float[Tensor, "b c *size"]:
        if not (self.training and distributed.is_initialized()):
            return super().forward(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        places = [0, *range(2, x.ndim)]
        channel = (-1, *[1] * (x.ndim - 2))
        sums = torch.cat((wide.sum(places), wide.new_tensor([x.numel() / x.shape[1]])))
        sums = SumOverProcesses.apply(sums)
        count, mean = sums[-1], sums[:-1] / sums[-1]
        centered = wide - mean.view(channel)
        variance = SumOverProcesses.apply(centered.square().sum(places)) / count
        self.follow(mean.detach(), variance.detach() * count / (count - 1))
        normalized = centered * (variance + self.eps).rsqrt().view(channel)
        if self.weight is not None:
            normalized = normalized * self.weight.view(channel)
        if self.bias is not None:
            normalized = normalized + self.bias.view(channel)
        return normalized.to(x.dtype)

    def follow(self, mean: Float[Tensor, " c"], variance: Float[Tensor, " c"]) -> None:
        """Move the running statistics."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        rate = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_(variance.to(self.running_var.dtype), rate)


class SynchronizedNormAct(SynchronizedNorm):
    """The same for timm's batch norm with an activation behind it."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Float[Tensor, "b c *size"]) -> Float[Tensor, "b c *size"]:
        return self.act(self.drop(super().forward(x)))


SYNCHRONIZED: dict[type[nn.Module], tuple[type[_BatchNorm], type[_BatchNorm]]] = {
    nn.BatchNorm1d: (SynchronizedNorm, nn.SyncBatchNorm),
    nn.BatchNorm2d: (SynchronizedNorm, nn.SyncBatchNorm),
    BatchNormAct2d: (SynchronizedNormAct, SyncBatchNormAct),
}
"""What each kind of norm becomes on the CPU and on a GPU."""
DONE = {kind for kinds in SYNCHRONIZED.values() for kind in kinds}


class SumOverProcesses(torch.autograd.Function):
    """A sum over all processes, of values on the way forward and of their gradients on the way back."""

    @staticmethod
    def forward(context: Any, x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        total = x.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        total = gradient.clone()
        distributed.all_reduce(total)
        return total
