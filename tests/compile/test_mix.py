"""Mixing compiles into one graph, and another draw needs no other."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from alltokens.mix.pixel_mix import PixelMix
from alltokens.mix.token_mix import TokenMix

BATCH, GRID, SIZE, CLASSES = 4, (3, 5), (12, 20), 7

CASES = {
    "tokens": (lambda generator: TokenMix.draw(BATCH, GRID, generator), (*GRID, 2)),
    "tokens, pairwise": (lambda generator: TokenMix.draw(BATCH, GRID, generator, pairwise=True), (*GRID, 2)),
    "cutmix": (lambda generator: PixelMix.cutmix(BATCH, GRID, generator), (3, *SIZE)),
    "mixup": (lambda generator: PixelMix.mixup(BATCH, generator), (3, *SIZE)),
}


def effects(mix: TokenMix | PixelMix, inputs: Tensor, token_targets: Tensor, image_targets: Tensor) -> list[Tensor]:
    return [mix.swap(inputs), mix.swap_targets(token_targets), mix.blend(image_targets)]


@pytest.mark.parametrize("case", CASES)
def test_mixing_is_one_graph_for_every_draw_with_the_eager_values_and_gradients(case):
    torch._dynamo.reset()
    draw, shape = CASES[case]
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(effects, backend=backend, fullgraph=True)
    generator = torch.Generator().manual_seed(0)
    tokens = GRID[0] * GRID[1]
    tensors = [
        torch.randn(BATCH, *rest, generator=generator).requires_grad_()
        for rest in (shape, (tokens, CLASSES), (CLASSES,))
    ]
    for _ in range(3):
        mix, answers = draw(generator), []
        for function in (effects, compiled):
            mixed = function(mix, *tensors)
            gradients = torch.autograd.grad(sum(part.square().sum() for part in mixed), tensors)
            answers.append([*mixed, *gradients])
        for eager, found in zip(*answers, strict=True):
            torch.testing.assert_close(found, eager)
    assert backend.frame_count == 1
