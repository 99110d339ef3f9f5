"""LV-ViT against what the released models answer with rule-made weights under the released key names."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from alltokens.models.zoo import find

from .sine_rule import sine_images, sine_state
from .twins import largest_difference, our_twin

GOLDEN = Path(os.environ.get("ALLTOKENS_GOLDEN", Path(__file__).parents[3] / "shared" / "golden"))

pytestmark = pytest.mark.skipif(
    not (GOLDEN / "lvvit_logits.npz").is_file(),
    reason=f"needs lvvit_logits.npz and lvvit_checkpoint_keys.json in {GOLDEN}; ALLTOKENS_GOLDEN names their folder",
)


@pytest.mark.parametrize(
    "name",
    [
        "lvvit_t",
        "lvvit_s",
        "lvvit_m",
        pytest.param("lvvit_l", marks=pytest.mark.slow),
    ],
)
@torch.no_grad()
def test_lvvit_answers_what_the_released_model_answers(name):
    shapes = json.loads((GOLDEN / "lvvit_checkpoint_keys.json").read_text())[name]
    golden = np.load(GOLDEN / "lvvit_logits.npz")
    config = find(name)
    model = our_twin(config, sine_state({key: tuple(shape) for key, shape in shapes.items()}, torch.float32))
    prediction = model(sine_images(2, 3, 224, 224, torch.float32))
    answers = {
        "image_logits": prediction.image_logits,
        "eval": prediction.scores(config.token_weight),
        "token_logits_first8": prediction.token_logits[..., :8],
    }
    for kind, answer in answers.items():
        assert largest_difference(answer, torch.from_numpy(golden[f"{name}.{kind}"])) < 1e-4, kind
