"""Time and memory of talking-heads attention, ours over timm's, at the sizes of CaiT.

    python benchmarks/talking_heads.py

On a GPU it first compares the kernels' values and gradients with float64. Written to
benchmarks/results/talking_heads.json (talking_heads_cpu.json without a GPU).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from timing import environment, median_seconds, write_results
from timm.models.cait import TalkingHeadAttn
from torch import Tensor, nn

from alltokens.models.talking_heads import fused_attention, plain_attention, talking_heads

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
ARGUMENTS = "q", "k", "v", "before", "after", "after_bias"
ALLOWED = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
SECONDS = 1.0 if CUDA else 15.0


@dataclass(frozen=True)
class Case:
    """Sizes of one attention: images, heads, tokens, channels of a head."""

    b: int
    h: int
    n: int
    c: int = 48

    def __str__(self) -> str:
        return f"b={self.b} h={self.h} n={self.n} c={self.c}"


CHECKED = Case(4, 8, 196), Case(2, 4, 197), Case(2, 16, 576), Case(2, 6, 784), Case(2, 3, 50, 24), Case(2, 1, 20, 64)
# CaiT-S24 and CaiT-XXS24 at 224 pixels, CaiT-S24 at 384.
TIMED = (Case(256, 8, 196), Case(256, 4, 196), Case(64, 8, 576)) if CUDA else (Case(8, 8, 196), Case(8, 4, 196))


class OurAttention(nn.Module):
    """From projected queries, keys and values to tokens."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        shapes = (case.h, case.h), (case.h,), (case.h, case.h), (case.h,)
        self.mixing = nn.ParameterList(torch.randn(shape, device=DEVICE) / case.h**0.5 for shape in shapes)

    def forward(self, qkv: Tensor) -> Tensor:
        q, k, v = qkv.unflatten(2, (3, self.case.h, self.case.c)).permute(2, 0, 3, 1, 4).unbind(0)
        before, before_bias, after, after_bias = self.mixing
        return talking_heads(q, k, v, before, before_bias, after, after_bias).transpose(1, 2).flatten(2)


class Given(nn.Module):
    """Stands for timm's qkv projection, whose output it is given."""

    value: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.value


class TimmAttention(nn.Module):
    """timm's layer without its projections."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.width = case.h * case.c
        self.layer = TalkingHeadAttn(self.width, num_heads=case.h, device=DEVICE)
        self.layer.qkv, self.layer.proj = Given(), nn.Identity()

    def forward(self, qkv: Tensor) -> Tensor:
        self.layer.qkv.value = qkv
        return self.layer(qkv[..., : self.width])


def relative_errors(case: Case, dtype: torch.dtype) -> dict[str, float]:
    """Relative norm of the error of the output and of every gradient, against float64 on the same inputs."""
    qkv = torch.randn(case.b, case.n, 3, case.h, case.c, device=DEVICE).to(dtype)
    gradient = torch.randn(case.b, case.n, case.h, case.c, device=DEVICE).to(dtype)
    shapes = (case.h, case.h), (case.h, case.h), (case.h,)
    tensors = [x.transpose(1, 2) for x in qkv.unbind(2)] + [torch.randn(x, device=DEVICE) / case.h**0.5 for x in shapes]

    def run(function: Callable[..., Tensor], arguments: list[Tensor], gradient: Tensor) -> list[Tensor]:
        arguments = [x.detach().requires_grad_() for x in arguments]
        out = function(*arguments)
        return [out.detach(), *torch.autograd.grad(out, arguments, gradient)]

    # Fills fresh memory with NaN, so that an element which no kernel writes is seen.
    torch.use_deterministic_algorithms(True, warn_only=True)
    ours = run(fused_attention, tensors, gradient)
    torch.use_deterministic_algorithms(False)
    exact = [x.double() for x in tensors]
    right = run(lambda *x: plain_attention(*x, dropout=0.0).transpose(1, 2), exact, gradient.double())
    errors = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(ours, right, strict=True)]
    return dict(zip(("out", *ARGUMENTS), errors, strict=True))


def compare(case: Case, compiled: bool) -> dict[str, Any]:
    """Milliseconds of a forward pass and of forward and backward, and megabytes held between the two."""
    dtype = torch.bfloat16 if CUDA else torch.float32
    qkv = torch.randn(case.b, case.n, 3 * case.h * case.c, device=DEVICE, dtype=dtype, requires_grad=True)
    gradient = torch.randn_like(qkv[..., : case.h * case.c])

    def forward(layer: nn.Module) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            return layer(qkv)

    def infer(layer: nn.Module) -> None:
        with torch.no_grad():
            forward(layer)

    def train(layer: nn.Module) -> None:
        forward(layer).backward(gradient)
        qkv.grad = None

    layers: dict[str, nn.Module] = {"ours": OurAttention(case), "timm": TimmAttention(case)}
    if compiled:
        layers = {name: torch.compile(layer, fullgraph=True) for name, layer in layers.items()}
    row: dict[str, Any] = {"case": str(case), "compiled": compiled}
    for kind, call in (("forward", infer), ("training", train)):
        seconds = median_seconds({name: partial(call, layer) for name, layer in layers.items()}, SECONDS)
        row |= {f"{kind}_{name}_ms": round(1000 * value, 3) for name, value in seconds.items()}
        row[f"{kind}_ratio"] = round(seconds["timm"] / seconds["ours"], 3)
    if CUDA:
        for name, layer in layers.items():
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            train(layer)
            row[f"training_{name}_mb"] = round((torch.cuda.max_memory_allocated() - before) / 1e6)
    torch.compiler.reset()
    return row


def main() -> int:
    """Check, compare, write; 1 when a kernel's error is too large."""
    torch.manual_seed(0)
    checks, timings = [], []
    if CUDA:
        for dtype, allowed in ALLOWED.items():
            for case in CHECKED:
                errors = relative_errors(case, dtype)
                right = all(error < allowed for error in errors.values())
                checks.append({"case": str(case), "dtype": str(dtype), "right": right, **errors})
                print(checks[-1], flush=True)
    for case in TIMED:
        for compiled in (False, True):
            timings.append(compare(case, compiled))
            print(timings[-1], flush=True)
    results = {**environment(), "checks": checks, "timings": timings}
    write_results("talking_heads" if CUDA else "talking_heads_cpu", results)
    return int(not all(check["right"] for check in checks))


if __name__ == "__main__":
    sys.exit(main())
