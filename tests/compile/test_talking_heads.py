"""torch.compile keeps talking-heads attention whole."""

import torch

from alltokens.models.talking_heads import talking_heads


def arguments() -> list[torch.Tensor]:
    """q, k, v and the mixing parameters."""
    shapes = [(2, 4, 9, 8)] * 3 + [(4, 4), (4,)] * 2
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def test_talking_heads_compile_into_one_graph() -> None:
    torch.manual_seed(0)
    tensors, answers = arguments(), []
    for function in (talking_heads, torch.compile(talking_heads, fullgraph=True, backend="aot_eager")):
        out = function(*tensors)
        answers.append([out, *torch.autograd.grad(out.square().sum(), tensors)])
    for eager, compiled in zip(*answers, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)


def test_talking_heads_with_dropout_compile_into_one_graph() -> None:
    torch.compile(talking_heads, fullgraph=True, backend="aot_eager")(*arguments(), dropout=0.1).sum().backward()
