"""Talking-heads attention against a loop over heads, timm, and its own Triton kernels run by Triton's interpreter."""

import subprocess
import sys
from functools import partial
from unittest.mock import patch

import pytest
import torch
from timm.models.cait import TalkingHeadAttn
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from alltokens.models.talking_heads import fused_attention, fused_backward, plain_attention, talking_heads

from ..kernels import run_with_kernels


def sine(t: int, *shape: int) -> Tensor:
    """Tensor number t of a rule that needs no random numbers."""
    count = torch.Size(shape).numel()
    return torch.sin(1 + 0.37 * t + 0.11 * torch.arange(count, dtype=torch.float64)).view(shape)


def inputs(b: int, h: int, n: int, c: int) -> list[Tensor]:
    """q, k, v and the mixing parameters, in float64."""
    tokens = [2 * sine(t, b, h, n, c) for t in range(3)]
    return [*tokens, sine(3, h, h), sine(4, h), sine(5, h, h), sine(6, h)]


def one_head_at_a_time(
    q: Tensor, k: Tensor, v: Tensor, before: Tensor, before_bias: Tensor, after: Tensor, after_bias: Tensor
) -> Tensor:
    """The definition, with a loop for every sum over heads."""
    heads = range(q.shape[1])
    scores = [q[:, h] @ k[:, h].mT / q.shape[-1] ** 0.5 for h in heads]
    mixed = [sum(before[g, h] * scores[h] for h in heads) + before_bias[g] for g in heads]
    weights = [torch.softmax(logits, -1) for logits in mixed]
    answers = [(sum(after[g, h] * weights[h] for h in heads) + after_bias[g]) @ v[:, g] for g in heads]
    return torch.stack(answers, 1)


def run(function, arguments: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """The output, then the gradient of every argument."""
    arguments = [x.detach().clone().requires_grad_() for x in arguments]
    out = function(*arguments)
    return [out.detach(), *torch.autograd.grad(out, arguments, gradient)]


@pytest.mark.parametrize(("h", "n"), [(1, 5), (3, 4), (8, 6)])
def test_values_and_gradients_equal_a_loop_over_heads(h: int, n: int) -> None:
    gradient = sine(7, 2, h, n, 4)
    ours = run(talking_heads, inputs(2, h, n, 4), gradient)
    loop = run(one_head_at_a_time, inputs(2, h, n, 4), gradient)
    for mine, theirs in zip(ours, loop, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_it_equals_timm() -> None:
    layer = TalkingHeadAttn(24, num_heads=4, qkv_bias=True, dtype=torch.float64)
    layer.load_state_dict({key: sine(t, *x.shape) for t, (key, x) in enumerate(sorted(layer.state_dict().items()))})
    tokens = sine(20, 2, 9, 24)
    qkv = layer.qkv(tokens).view(2, 9, 3, 4, 6).permute(2, 0, 3, 1, 4)
    mixing = layer.proj_l.weight, layer.proj_l.bias, layer.proj_w.weight, layer.proj_w.bias
    answer = layer.proj(talking_heads(*qkv, *mixing).transpose(1, 2).flatten(2))
    torch.testing.assert_close(answer, layer(tokens), rtol=1e-12, atol=1e-12)


def test_the_bias_before_the_softmax_has_a_gradient_of_zero() -> None:
    q, k, v, before, before_bias, after, after_bias = inputs(1, 2, 3, 4)
    before_bias.requires_grad_()
    talking_heads(q, k, v, before, before_bias, after, after_bias).sum().backward()
    assert torch.equal(before_bias.grad, torch.zeros(2, dtype=torch.float64))


def test_its_derivative_passes_gradcheck() -> None:
    assert torch.autograd.gradcheck(talking_heads, [x.requires_grad_() for x in inputs(1, 2, 3, 2)])


def test_dropout_drops_mixed_weights_and_keeps_their_mean() -> None:
    torch.manual_seed(0)
    q, k, v, *mixing = inputs(2, 4, 40, 40)
    v = torch.eye(40, dtype=torch.float64).expand_as(v)  # the answer is then the weights themselves
    kept = talking_heads(q, k, v, *mixing)
    dropped = talking_heads(q, k, v, *mixing, dropout=0.25)
    survives = dropped != 0
    torch.testing.assert_close(dropped[survives], kept[survives] / 0.75)
    assert abs(survives.double().mean().item() - 0.75) < 0.02


def test_it_runs_in_half_precision_under_autocast() -> None:
    exact = talking_heads(*inputs(2, 4, 9, 8))
    with torch.autocast("cpu", torch.bfloat16):
        rough = talking_heads(*(x.float() for x in inputs(2, 4, 9, 8)))
    assert rough.dtype == torch.bfloat16
    assert torch.linalg.norm(rough - exact) < 0.02 * torch.linalg.norm(exact)


def test_it_runs_on_the_meta_device() -> None:
    assert talking_heads(*(x.to("meta") for x in inputs(2, 4, 9, 8))).shape == (2, 4, 9, 8)


def count_flops(function, device: str) -> dict[str, int]:
    """FLOPs by operation of a function of talking heads' arguments, on tensors without values."""
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        function(*(torch.empty(x.shape, device=device, requires_grad=True) for x in inputs(2, 4, 9, 8)))
    return {str(operation): count for operation, count in counter.get_flop_counts()["Global"].items()}


FORWARD_FLOPS = 2 * (2 * 4 * 9 * 9) * (2 * 8 + 2 * 4)


def test_products_with_heads_and_tokens_are_counted_as_flops() -> None:
    counts = count_flops(lambda *x: talking_heads(*x).sum().backward(), "cpu")
    assert sum(counts.values()) == 3 * FORWARD_FLOPS


def test_a_gpu_runs_one_operation_unless_weights_are_dropped() -> None:
    assert count_flops(talking_heads, "cuda") == {"alltokens.talking_heads": FORWARD_FLOPS}
    plain = count_flops(partial(talking_heads, dropout=0.1), "cuda")
    assert "alltokens.talking_heads" not in plain
    assert sum(plain.values()) == FORWARD_FLOPS


def test_the_backward_operation_counts_twice_the_flops_of_the_forward() -> None:
    def backward(q, k, v, before, before_bias, after, after_bias):
        return fused_backward(torch.empty(2, 9, 4, 8), q, k, v, before, after, after_bias)

    assert count_flops(backward, "cpu") == {"alltokens.talking_heads_backward": 2 * FORWARD_FLOPS}


def test_the_output_of_a_gpu_flattens_into_tokens_without_a_copy() -> None:
    with FakeTensorMode():
        out = talking_heads(*(torch.empty(x.shape, device="cuda") for x in inputs(2, 4, 9, 8)))
    assert out.transpose(1, 2).is_contiguous()


def test_it_works_without_triton() -> None:
    source = "import sys; sys.modules['triton'] = None; import alltokens.models.talking_heads as t; print(t.HAS_TRITON)"
    answer = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"


@pytest.mark.slow
def test_the_triton_kernels_equal_the_plain_operations() -> None:
    run_with_kernels("tests.models.test_talking_heads")


def compare_kernels(b: int, h: int, n: int, c: int, dtype: torch.dtype, tolerance: float) -> None:
    """Values and gradients of the kernels on views of one qkv tensor, against float64."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    qkv, gradient = torch.randn(b, n, 3, h, c).to(device, dtype), torch.randn(b, n, h, c).to(device, dtype)
    mixing = [torch.randn(h, h) / h**0.5, torch.randn(h, h) / h**0.5, torch.randn(h)]
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    ours = run(fused_attention, [q, k, v, *(x.to(device) for x in mixing)], gradient)
    exact = [x.double() for x in (q, k, v, *(y.to(device) for y in mixing))]
    theirs = run(lambda *x: plain_attention(*x, dropout=0.0).transpose(1, 2), exact, gradient.double())
    for name, mine, right in zip(("out", "q", "k", "v", "before", "after", "bias"), ours, theirs, strict=True):
        error = (torch.linalg.norm(mine.double() - right) / torch.linalg.norm(right)).item()
        assert error < tolerance, f"{name} is off by {error:.1e} at b={b}, h={h}, n={n}, c={c}, {dtype}"


def check_kernels() -> None:
    """Head counts that fill a stack and that do not, rows of one block and of several, odd sizes."""
    from alltokens.models import talking_heads_kernels as kernels

    torch.manual_seed(0)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 3e-3)):
        for sizes in ((2, 8, 20, 24), (1, 3, 17, 48), (1, 16, 33, 8), (1, 1, 16, 64)):
            compare_kernels(*sizes, dtype, tolerance)
        short = kernels.Walk(lines=16, columns=16, steps=2, warps=1, stages=1)
        with patch.object(kernels, "mixing_walk", return_value=short):
            compare_kernels(1, 6, 37, 16, dtype, tolerance)
    shapes = [(1, 2, 5, 8)] * 3 + [(2, 2), (2, 2), (2,)]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.library.opcheck(fused_attention, [torch.randn(x, device=device, requires_grad=True) for x in shapes])


if __name__ == "__main__":
    check_kernels()
