"""Every name of the zoo: it builds, counts, is registered with timm, saves and loads."""

from dataclasses import replace

import pytest
import timm
import torch

from alltokens.models import timm_contract
from alltokens.models.config import ViTConfig
from alltokens.models.counts import count
from alltokens.models.factory import open_model
from alltokens.models.vit import VisionTransformer
from alltokens.models.weights import save_model
from alltokens.models.zoo import MODELS, crop_ratio

TIMM_NAMES = {ours: theirs for theirs, ours in timm_contract.NAMES.items()}


def shrunken(config: ViTConfig) -> ViTConfig:
    """Two blocks of narrow heads; a class token that joined late joins late still."""
    place = {None: None, 0: 0, config.depth: 2}.get(config.class_token_at, 1)
    return replace(config, width=8 * config.heads, depth=2, class_token_at=place, classes=10)


def saved_and_loaded(config: ViTConfig, path) -> None:
    """Assert that the model in bfloat16 comes back from a file as it was."""
    with torch.device("meta"):
        model = VisionTransformer(config).bfloat16()
    # Distinct values without the minutes that drawing hundreds of millions of normals would take.
    state = {}
    for number, (key, tensor) in enumerate(model.state_dict().items()):
        state[key] = (
            (torch.arange(tensor.numel()) * (2 * number + 1) % 251 - 125).to(tensor.dtype).reshape(tensor.shape)
        )
    model.load_state_dict(state, assign=True)
    try:
        save_model(model, path)
        loaded = open_model(path)
    finally:
        path.unlink(missing_ok=True)
    assert loaded.config == config
    found = loaded.state_dict()
    assert found.keys() == state.keys()
    for key, tensor in state.items():
        assert found[key].dtype == tensor.dtype
        assert torch.equal(found[key], tensor), key


@pytest.mark.parametrize("name", MODELS)
def test_the_model_builds_on_the_meta_device_through_timm_and_is_counted(name):
    with torch.device("meta"):
        model = timm.create_model(TIMM_NAMES[name]).model
    assert model.config == MODELS[name]
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    counts = count(MODELS[name])
    assert counts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert counts.flops > 0


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_registered_with_timm(name):
    assert timm.is_model(TIMM_NAMES[name])
    assert timm.models.model_entrypoint(TIMM_NAMES[name]).__module__ == timm_contract.__name__
    config = timm.get_pretrained_cfg(TIMM_NAMES[name])
    assert config.input_size == (3, *MODELS[name].image_size)
    assert config.crop_pct == crop_ratio(name)
    assert config.num_classes == 1000


@pytest.mark.parametrize("name", MODELS)
def test_a_small_model_of_that_kind_saves_and_loads(name, tmp_path):
    saved_and_loaded(shrunken(MODELS[name]), tmp_path / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_whole_model_saves_and_loads(name, tmp_path):
    saved_and_loaded(MODELS[name], tmp_path / "model.safetensors")
