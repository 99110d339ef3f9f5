"""What sharding and recomputing save of the memory that a config needs."""

from dataclasses import replace

import pytest

from alltokens.errors import UserError
from alltokens.models.counts import count
from alltokens.models.factory import find_config
from alltokens.models.zoo import MODELS
from alltokens.recipes.memory import Memory, memory_of
from alltokens.recipes.names import RECIPES

LVVIT_T = RECIPES["lvvit_t_token_labels"].config
STATE = ("weights", "gradients", "optimizer", "average")


def state_of(memory: Memory) -> list[int]:
    return [getattr(memory, part) for part in STATE]


def of_model(name: str, recompute: bool) -> int:
    """Activations of four images, in numbers."""
    config = replace(LVVIT_T, model=find_config(name), batch=4, precision="float32")
    return memory_of(config, recompute=recompute).activations // 4


def test_processes_that_shard_have_their_part_of_all_that_belongs_to_weights():
    part = -(-4 * count(MODELS["lvvit_t"]).parameters // 8)
    memory = memory_of(LVVIT_T, 8, shard=True)
    assert state_of(memory) == [part, part, 2 * part, part]
    assert memory.activations == memory_of(LVVIT_T, 8).activations


def test_one_process_has_the_whole_of_what_is_sharded():
    assert memory_of(LVVIT_T, shard=True) == memory_of(LVVIT_T)


def test_recomputing_keeps_the_inputs_of_blocks_and_the_rest_of_one():
    usual, memory = memory_of(LVVIT_T, 4), memory_of(LVVIT_T, 4, recompute=True)
    assert state_of(memory) == state_of(usual)
    # By hand, as where nothing is recomputed: tests/cli/test_recipes_command.py.
    inputs, block = 12 * 197 * 240, 197 * 240 * (2 + 3 + 3 + 2 * 3) + 4 * 197 * 197
    stem = 3 * 224 * 224 + 112 * 112 * 64 * (3 * 2 + 1)
    # The last norm and the heads keep their input.
    end = 2 * 197 * 240
    assert memory.activations == pytest.approx(256 * 2 * (stem + inputs + block + end), rel=0.02)
    assert 256 * 2 * block < memory.activations < usual.activations


@pytest.mark.parametrize("name", ["cait_xxs24", "vit_ti_12x2", "timm/vit_tiny_patch16_224"])
def test_a_deeper_model_costs_its_inputs_where_it_costs_blocks(name: str):
    assert of_model(name, recompute=True) < of_model(name, recompute=False) / 4


def test_of_blocks_that_differ_the_largest_counts():
    # Swin's first have 56 x 56 tokens of 96 channels: inputs of norms and linear layers, queries, keys and values, both
    # sides of the activation, and attention of 3 heads in windows of 49.
    block = 4 * (56 * 56 * 96 * (2 + 3 + 3 + 2 * 4) + 64 * 3 * 49 * 49)
    name = "timm/swin_tiny_patch4_window7_224"
    inputs = 4 * 96 * (2 * 56 * 56 + 2 * 2 * 28 * 28 + 6 * 4 * 14 * 14 + 2 * 8 * 7 * 7)
    assert block + inputs < of_model(name, recompute=True) < of_model(name, recompute=False) / 3


def test_a_model_that_cannot_recompute_is_refused_as_in_training():
    config = replace(LVVIT_T, model=find_config("timm/test_resnet"))
    sentence = "the batch norms of 'timm/test_resnet' would count each batch twice; train it without --recompute"
    with pytest.raises(UserError) as error:
        memory_of(config, recompute=True)
    assert str(error.value) == sentence
