"""Representative models by name, cut to two blocks, compile to machine code without a graph break."""

import shutil
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from alltokens.models.config import LayerScale, ViTConfig
from alltokens.models.zoo import find

from ..kinds import images_for, lively

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler; there is no g++"),
]


def shortened(config: ViTConfig) -> ViTConfig:
    """Two blocks of the real width on a small image; a class token that joined late joins late still."""
    at, depth = config.class_token_at, config.depth
    place = {None: None, 0: 0, depth: 2}.get(at, 1)
    return replace(config, depth=2, class_token_at=place, image_size=(64, 64), drop_path=0.0)


MODELS = {
    "vit_s": find("vit_s"),
    "deit_s_distilled": find("deit_s_distilled"),
    "lvvit_s": find("lvvit_s"),
    "cait_xxs24": find("cait_xxs24"),
    "vit_s_18x2 with LayerScale": replace(find("vit_s_18x2"), residual=LayerScale(initial=1.0)),
    "vit_b_hmlp_bn": find("vit_b_hmlp_bn"),
    "t2t_vit_14": find("t2t_vit_14"),
    "cait_t2_insert_8": find("cait_t2_insert_8"),
    "vit_ti with relative positions": replace(find("vit_ti"), positions="relative"),
}
# Gradients double the minutes, and test_compile.py has those of every kind of part.
TRAINED = {"vit_s", "vit_s_18x2 with LayerScale"}


@pytest.mark.filterwarnings("default")  # The code generator's own warnings are not ours to mend.
@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_compiles_without_a_break_and_agrees_with_eager(name):
    torch._dynamo.reset()
    counters.clear()
    config = shortened(MODELS[name])
    eager = lively(config).eval()
    with torch.no_grad():
        for parameter in eager.parameters():
            # Logits of order one, so that the tolerance means the same for every width.
            parameter.mul_(0.2 if parameter.ndim > 1 else 1.0)
    compiled_model = deepcopy(eager)
    images = images_for(config)
    with torch.set_grad_enabled(name in TRAINED):
        expected, found = eager(images), torch.compile(compiled_model, fullgraph=True)(images)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1
    for head, compiled_head in zip(expected, found, strict=True):
        if head is None:
            assert compiled_head is None
        else:
            torch.testing.assert_close(compiled_head, head, rtol=0, atol=1e-4)
    if name not in TRAINED:
        return
    expected.image_logits.square().mean().backward()
    found.image_logits.square().mean().backward()
    pairs = zip(eager.named_parameters(), compiled_model.parameters(), strict=True)
    for (key, parameter), compiled_parameter in pairs:
        if parameter.grad is not None:
            torch.testing.assert_close(
                compiled_parameter.grad,
                parameter.grad,
                rtol=1e-3,
                atol=1e-4,
                msg=lambda text, key=key: f"{key}: {text}",
            )
