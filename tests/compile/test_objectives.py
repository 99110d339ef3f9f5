"""Objectives compile as one graph, the drawing of mixes included, with the eager losses and gradients."""

import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from alltokens.objectives.classify import Classification, ClassifyConfig
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.token_label import TokenLabelConfig, TokenLabeling

from ..objectives.batches import a_batch, a_model

BOTH = MixConfig(kind="cutmix_or_mixup", mixup_alpha=0.8)
CASES = {
    "token labels": lambda: TokenLabeling(a_model("rectangle")),
    "token labels, every choice": lambda: TokenLabeling(
        a_model("rectangle"),
        TokenLabelConfig(image_target="blend", rule="probabilities", participation=0.5, mix=BOTH),
    ),
    "token labels, timm": lambda: TokenLabeling(a_model("timm/test_vit")),
    "classes": lambda: Classification(a_model("rectangle", token_head=False)),
    "relabel": lambda: Classification(
        a_model("rectangle", token_head=False), ClassifyConfig(image_target="score_map", mix=MixConfig(kind="cutmix"))
    ),
}


def step(objective: nn.Module, call: nn.Module, seed: int) -> list[torch.Tensor]:
    batch = a_batch(objective.model)
    losses = call(replace(batch, seeds=batch.seeds + seed, keys=tuple(f"{seed} {key}" for key in batch.keys)))
    return [losses.total, *losses.parts.values(), *torch.autograd.grad(losses.total, list(objective.parameters()))]


@pytest.mark.parametrize("case", CASES)
def test_an_objective_is_one_graph_for_every_draw_with_the_eager_losses_and_gradients(case):
    torch._dynamo.reset()
    objective = CASES[case]()
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(objective, backend=backend, fullgraph=True)
    for seed in range(3):
        torch.testing.assert_close(step(objective, compiled, seed), step(objective, objective, seed))
    assert backend.frame_count == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler; there is no g++")
@pytest.mark.filterwarnings("default")  # The code generator's own warnings are not ours to mend.
@pytest.mark.parametrize("case", ["token labels", "token labels, every choice"])
def test_machine_code_draws_the_same_mixes_and_noise_and_has_the_eager_losses(case):
    torch._dynamo.reset()
    objective = CASES[case]()
    compiled = torch.compile(objective, fullgraph=True)
    for seed in range(3):
        torch.testing.assert_close(step(objective, compiled, seed), step(objective, objective, seed))
