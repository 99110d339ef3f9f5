"""Every kind of part compiles as one graph, with the eager answers and gradients."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from ..kinds import DROPPING, KINDS, answers, images_for, lively


def run(model: torch.nn.Module, call: object, images: Tensor) -> dict[str, Tensor]:
    """Logits, gradients and buffers after one step forward and back."""
    torch.manual_seed(0)
    logits = [head for head in call(images) if head is not None]
    sum(head.square().sum() for head in logits).backward()
    gradients = {f"gradient of {key}": value.grad for key, value in model.named_parameters() if value.requires_grad}
    return {f"head {place}": head for place, head in enumerate(logits)} | gradients | dict(model.named_buffers())


# Evaluation differs in batch norms and dropouts only: a few stand for all outside the slow half.
EVALUATED = {"vit", "lvvit", "cait", "dropping"}
CASES = [pytest.param(kind, True, id=f"{kind} in training") for kind in [*KINDS, "dropping"]] + [
    pytest.param(kind, False, id=f"{kind} in evaluation", marks=[] if kind in EVALUATED else pytest.mark.slow)
    for kind in [*KINDS, "dropping"]
]


@pytest.mark.parametrize(("kind", "training"), CASES)
def test_a_model_is_one_graph_with_the_eager_values_and_gradients(kind, training):
    torch._dynamo.reset()
    config = DROPPING if kind == "dropping" else KINDS[kind]
    eager = lively(config).train(training)
    compiled = deepcopy(eager)
    # The tracer and autograd without a code generator: values can only differ where the graph does.
    backend = CompileCounterWithBackend("aot_eager")
    images = images_for(config)
    expected = run(eager, eager, images)
    found = run(compiled, torch.compile(compiled, backend=backend, fullgraph=True), images)
    assert backend.frame_count == 1
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


def test_another_batch_size_makes_one_more_graph_at_most():
    torch._dynamo.reset()
    model = lively(KINDS["lvvit"]).eval()
    backend = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for batch in (2, 3, 4, 5):
        images = images_for(model.config, batch)
        torch.testing.assert_close(answers(compiled, images), answers(model, images))
    assert backend.frame_count <= 2
