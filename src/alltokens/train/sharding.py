"""Weights, gradients, averages and an optimizer's memory spread over all processes (FSDP2), and whole again on disk."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from alltokens.errors import require
from alltokens.models.loading import build
from alltokens.models.weights import Model
from alltokens.processes import Processes

Tensors = dict[str, Tensor]


def shard(objectives: Sequence[nn.Module], device: torch.device, processes: Processes) -> None:
    """Leave each process its part of every weight; a block's are whole only while it is at work."""
    require(processes.count > 1, "sharding takes several processes; start them with torchrun, or train without --shard")
    for name, parameter in objectives[0].named_parameters():
        require(
            parameter.ndim > 0, f"'{name}' is a single number, which has no parts; train this model without --shard"
        )
    mesh = init_device_mesh(device.type, (processes.count,))
    for objective in objectives:
        for block in blocks_of(objective):
            fully_shard(block, mesh=mesh)
        # After an evaluation no backward pass follows that would free the root's weights.
        fully_shard(objective, mesh=mesh, reshard_after_forward=True)
        register_fsdp_forward_method(objective, "evaluate")


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The members of all lists of blocks, inner ones first; timm's models have such lists as well, or are one whole."""
    lists = [part for name, part in module.named_modules() if "blocks" in name.rpartition(".")[2]]
    return [block for part in reversed(lists) for block in part.children()]


def reducing(forward: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Around the forward pass of one part of a step: gradients meet those of other processes after the last alone."""
    if isinstance(forward, FSDPModule):
        forward.set_requires_gradient_sync(last)
    elif isinstance(forward, DistributedDataParallel) and not last:
        return forward.no_sync()
    return nullcontext()


def local(tensor: Tensor) -> Tensor:
    """What this process has of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of it; every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(tensors: Tensors) -> Tensors:
    """Whole tensors in the memory of the first process, one after the other; the others have their shapes alone.

    Every process must ask. What is not sharded stays as it is.
    """
    return {
        name: whole(tensor).to("cpu" if tensor.device_mesh.get_rank() == 0 else "meta")
        if isinstance(tensor, DTensor)
        else tensor
        for name, tensor in tensors.items()
    }


def gathered_model(model: Model) -> Model:
    """The model, whole in the first process; every process must ask."""
    with torch.device("meta"):
        twin = build(model.config)
    twin.load_state_dict(gathered(model.state_dict()), assign=True)
    return twin


def sharded_like(tensor: Tensor, example: Tensor) -> Tensor:
    """What this process is to have of a whole tensor, if the example is sharded."""
    if not isinstance(example, DTensor):
        return tensor
    return distribute_tensor(tensor, example.device_mesh, example.placements, src_data_rank=None)


def load_whole(module: nn.Module, state: Tensors) -> None:
    """Whole tensors into a module, sharded or not."""
    own = module.state_dict()
    module.load_state_dict({name: sharded_like(tensor, own[name]) for name, tensor in state.items()})
