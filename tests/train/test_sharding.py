"""What is sharded together, and what cannot be; sharded runs are among the slow tests of the trainer."""

import pytest
import torch
from torch import nn

from alltokens.errors import UserError
from alltokens.models.factory import create_model
from alltokens.processes import Processes
from alltokens.train.sharding import blocks_of, shard

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "size", "count"),
    [
        ("lvvit_t", 224, 12),
        ("cait_xxs24", 224, 26),
        ("timm/vit_tiny_patch16_224", 224, 12),
        ("timm/cait_xxs24_224", 224, 26),
        ("timm/convnext_tiny", 224, 18),
        ("timm/resnet18", 224, 0),
    ],
)
def test_blocks_are_sharded_one_by_one(name: str, size: int, count: int):
    with torch.device("meta"):
        model = create_model(name, image_size=size)
    found = blocks_of(model)
    assert len(found) == count
    assert len({id(parameter) for block in found for parameter in block.parameters()}) == sum(
        len(list(block.parameters())) for block in found
    )


def test_one_process_has_nothing_to_shard():
    with pytest.raises(UserError) as raised:
        shard([nn.Linear(2, 2)], CPU, Processes(0, 1))
    assert str(raised.value) == ("sharding takes several processes; start them with torchrun, or train without --shard")


def test_a_single_number_cannot_be_sharded():
    objective = nn.Module()
    objective.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(UserError) as raised:
        shard([objective], CPU, Processes(0, 2))
    assert str(raised.value) == "'scale' is a single number, which has no parts; train this model without --shard"
