"""Objectives inside DDP and FSDP2, evaluated there too; a step waits for nothing on its device."""

from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from alltokens.annotate.annotator import Annotator
from alltokens.objectives.classify import Classification
from alltokens.objectives.distill import Distillation, DistillConfig
from alltokens.objectives.teachers import Teacher
from alltokens.objectives.token_label import TokenLabelConfig, TokenLabeling

from ..annotate.toys import toy_annotator
from .batches import CLASSES, a_batch, a_model
from .test_distill import a_teacher

OBJECTIVES = {
    "token labels": lambda: TokenLabeling(a_model("rectangle")),
    "token labels, timm": lambda: TokenLabeling(a_model("timm/test_vit")),
    "online token labels": lambda: TokenLabeling(
        a_model("rectangle"), TokenLabelConfig(teacher="toy"), toy_annotator(CLASSES)
    ),
    "distillation": lambda: Distillation(
        a_model("square", token_head=False), DistillConfig(teacher="toy", labels="soft"), a_teacher("square")
    ),
    "classes": lambda: Classification(a_model("square", token_head=False)),
}
EACH = pytest.mark.parametrize("build", OBJECTIVES.values(), ids=OBJECTIVES)


@pytest.fixture
def one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def check_same(wrapped: nn.Module, plain: nn.Module) -> None:
    batch = a_batch(plain.model)
    for objective in (wrapped, plain):
        objective(batch).total.backward()
    gradients = [[whole(parameter.grad) for parameter in each.parameters()] for each in (wrapped, plain)]
    torch.testing.assert_close(*gradients)


@EACH
def test_ddp_wraps_an_objective(one_process: None, build: Callable[[], nn.Module]) -> None:
    plain = build()
    check_same(DistributedDataParallel(deepcopy(plain)), plain)


@EACH
def test_a_sharded_model_is_trained_and_evaluated_through_its_objective(
    one_process: None, build: Callable[[], nn.Module]
) -> None:
    plain = build()
    sharded = fully_shard(deepcopy(plain), mesh=init_device_mesh("cpu", (1,)))
    register_fsdp_forward_method(sharded, "evaluate")
    batch = a_batch(plain.model, 3)
    torch.testing.assert_close(sharded.evaluate(batch), plain.evaluate(batch))
    check_same(sharded, plain)


class OnlyMeta(TorchDispatchMode):
    """Fails on an operation with a tensor on the host, which a step on a GPU would have to copy."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        tensors = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, torch.Tensor)]
        assert all(tensor.is_meta for tensor in tensors), function
        return function(*arguments, **(options or {}))


@EACH
def test_a_step_reads_no_value_back_and_copies_none_to_the_device(build: Callable[[], nn.Module]) -> None:
    objective = build()
    batch = a_batch(objective.model)
    # Values of tensors on the meta device cannot be read: whatever waited for one would raise.
    objective.to("meta")
    match getattr(objective, "teacher", None):
        case Teacher(model=network) | Annotator(module=network):
            network.to("meta")
    batch = batch.to("meta")
    with OnlyMeta():
        losses = objective(batch)
        losses.total.backward()
        assert objective.evaluate(batch).image_logits.is_meta
    assert all(part.is_meta for part in losses.parts.values())
