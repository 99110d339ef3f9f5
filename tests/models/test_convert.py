"""Published layouts under our names and back; what has none is named."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch

from alltokens.errors import UserError
from alltokens.models.config import GroupNorm, HMLPStem, ScalarGain
from alltokens.models.convert import from_published, to_published
from alltokens.models.vit import VisionTransformer
from alltokens.models.zoo import find

CONFIG = replace(find("vit_ti"), depth=1)


@pytest.fixture
def published():
    with torch.device("meta"):
        return timm.create_model("vit_tiny_patch16_224", depth=1).state_dict()


def test_a_fitting_state_gives_every_tensor_of_the_model(published):
    with torch.device("meta"):
        expected = VisionTransformer(CONFIG).state_dict()
    found = from_published(CONFIG, published)
    assert {key: tensor.shape for key, tensor in found.items()} == {key: x.shape for key, x in expected.items()}


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"stem": HMLPStem()}, "a stem like HMLPStem(norm='batch', activation='gelu')"),
        ({"positions": "sinusoidal"}, "sinusoidal positions"),
        ({"positions": "relative"}, "relative positions"),
        ({"depth": 3, "class_token_at": 1, "class_position": False}, "a class token that joins at block 1"),
        ({"residual": ScalarGain()}, "a residual like ScalarGain(initial=0.0)"),
        ({"norm": GroupNorm(groups=2)}, "a norm like GroupNorm(groups=2, eps=1e-05)"),
        ({"norm_position": "post"}, "norms after the sum"),
        ({"branches": 2, "attention": "talking_heads"}, "parallel branches of talking heads"),
    ],
)
def test_what_nobody_published_is_refused(changes, part, published):
    config = replace(CONFIG, **changes)
    for convert in (from_published, to_published):
        with pytest.raises(UserError, match=f"^{re.escape(f'no published layout has {part}')}$"):
            convert(config, published)


@pytest.mark.parametrize("name", ["lvvit_t", "lvvit_s", "lvvit_m", "lvvit_l"])
def test_lvvit_is_written_under_the_released_names(name):
    golden = Path(os.environ.get("ALLTOKENS_GOLDEN", Path(__file__).parents[3] / "shared" / "golden"))
    keys = golden / "lvvit_checkpoint_keys.json"
    if not keys.is_file():
        pytest.skip(f"needs {keys}; ALLTOKENS_GOLDEN names its folder")
    with torch.device("meta"):
        state = VisionTransformer(find(name)).state_dict()
    found = {key: list(tensor.shape) for key, tensor in to_published(find(name), state).items()}
    assert found == json.loads(keys.read_text())[name]
