"""Times talking-heads attention against timm's, and tiles of its Triton kernels: `python benchmarks/talking_heads.py`.

On a GPU it first compares values and gradients with float64. Results: benchmarks/results/talking_heads.json
"""

import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.models.cait import TalkingHeadAttn
from torch import Tensor, nn

from alltokens.models.talking_heads import fused_attention, plain_attention, talking_heads

RESULT = Path(__file__).parent / "results" / "talking_heads.json"
TUNING_ENDS_AFTER = 100.0
"""Seconds after which no further tile is tried."""
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
GRADIENTS = "out", "q", "k", "v", "before", "after", "after_bias"


@dataclass(frozen=True)
class Case:
    """Sizes of one attention."""

    b: int
    h: int
    n: int
    c: int = 48

    def __str__(self) -> str:
        return f"b={self.b} h={self.h} n={self.n} c={self.c}"


@dataclass
class Report:
    """What was measured, in order."""

    errors: list[dict[str, Any]] = field(default_factory=list)
    attention: list[dict[str, Any]] = field(default_factory=list)
    tiles: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @contextmanager
    def surviving(self, what: str) -> Iterator[None]:
        """One failing variant is written down and does not end the run."""
        try:
            yield
        except Exception as problem:
            self.failures.append(f"{what}: {type(problem).__name__}: {str(problem)[:300]}")
            print("FAILED", self.failures[-1], flush=True)


class Attention(nn.Module):
    """From a projected qkv tensor to tokens, through any function of q, k, v and the mixing parameters."""

    def __init__(self, case: Case, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.case, self.function = case, function
        h = case.h
        shapes = (h, h), (h,), (h, h), (h,)
        self.mixing = nn.ParameterList(torch.randn(shape, device=DEVICE) / h**0.5 for shape in shapes)

    def forward(self, qkv: Tensor) -> Tensor:
        q, k, v = qkv.unflatten(2, (3, self.case.h, self.case.c)).permute(2, 0, 3, 1, 4).unbind(0)
        before, before_bias, after, after_bias = self.mixing
        return self.function(q, k, v, before, before_bias, after, after_bias).transpose(1, 2).flatten(2)


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


def plain(q: Tensor, k: Tensor, v: Tensor, before: Tensor, before_bias: Tensor, *after: Tensor) -> Tensor:
    """Our formulation in torch's own operations."""
    return plain_attention(q, k, v, before, *after, dropout=0.0)


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
    errors = [(a.double() - c).norm() / c.norm() for a, c in zip(ours, right, strict=True)]
    return {name: error.item() for name, error in zip(GRADIENTS, errors, strict=True)}


def check(report: Report) -> None:
    """Errors at the sizes of CaiT and at odd ones."""
    cases = Case(4, 8, 196), Case(2, 4, 197), Case(2, 16, 576), Case(2, 6, 784), Case(2, 3, 50, 24), Case(2, 1, 20, 64)
    for dtype, allowed in ((torch.bfloat16, 1e-2), (torch.float16, 2e-3), (torch.float32, 1e-5)):
        for case in cases:
            with report.surviving(f"check {case} {dtype}"):
                errors = relative_errors(case, dtype)
                bad = not all(error < allowed for error in errors.values())
                report.errors.append({"case": str(case), "dtype": str(dtype), "wrong": bad, **errors})
                figures = " ".join(f"{name} {error:.1e}" for name, error in errors.items())
                print("WRONG" if bad else "ok", case, dtype, figures, flush=True)


def milliseconds(function: Callable[[], Any]) -> float:
    """Median time of a call; on a CPU the least, for other work only adds to it."""
    if CUDA:
        from triton.testing import do_bench

        return do_bench(function, warmup=15, rep=60, return_mode="median")
    times = []
    for _ in range(15):
        start = time.perf_counter()
        function()
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


def time_attention(report: Report, case: Case, name: str, layer: nn.Module, compiled: bool) -> None:
    """Forward without gradients, forward and backward, and the memory both take."""
    torch._dynamo.reset()
    module = torch.compile(layer, fullgraph=True, dynamic=False) if compiled else layer
    qkv = torch.randn(case.b, case.n, 3 * case.h * case.c, device=DEVICE, dtype=torch.bfloat16 if CUDA else None)
    gradient = torch.randn_like(qkv[..., : case.h * case.c])
    qkv.requires_grad_()

    def forward() -> None:
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA):
            module(qkv)

    def both() -> None:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=CUDA):
            out = module(qkv)
        out.backward(gradient)
        qkv.grad = None

    row: dict[str, Any] = {"case": str(case), "name": name, "compiled": compiled}
    row["forward_ms"], row["training_ms"] = milliseconds(forward), milliseconds(both)
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        both()
        row["training_mb"] = (torch.cuda.max_memory_allocated() - held) / 1e6
    report.attention.append(row)
    print(row, flush=True)


def compare(report: Report) -> None:
    """Every formulation at the sizes of CaiT-S24, CaiT-XXS24 and CaiT-S at 384 pixels."""
    timm, ours = (("timm", True), ("ours", False)), (("ours", True), ("plain", True))
    if CUDA:
        variants = {Case(256, 8, 196): timm + ours, **dict.fromkeys((Case(128, 8, 196), Case(256, 4, 196)), timm)}
        variants[Case(64, 8, 576)] = timm
    else:
        pairs = tuple((name, compiled) for compiled in (False, True) for name in ("timm", "ours"))
        variants = dict.fromkeys((Case(8, 8, 196), Case(8, 4, 196)), pairs)
    functions = {"ours": talking_heads, "plain": plain}
    for case, names in variants.items():
        for name, compiled in names:
            with report.surviving(f"{name} compiled={compiled} {case}"):
                layer = TimmAttention(case) if name == "timm" else Attention(case, functions[name])
                time_attention(report, case, name, layer, compiled)
            if CUDA:
                torch.cuda.empty_cache()


def product_jobs(case: Case) -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    """The three kinds of product of one attention, each with several tiles."""
    from alltokens.models.talking_heads_kernels import Tile, product, score_tile, square_buffer, value_tile

    b, h, n, c = case.b, case.h, case.n, case.c
    q, k, v = torch.randn(b, n, 3, h, c, device=DEVICE, dtype=torch.bfloat16).permute(2, 0, 3, 1, 4).unbind(0)
    squares, out = torch.randn_like(square_buffer(q)), torch.empty_like(q)
    score, value = score_tile(q), value_tile(q)
    for tile in (
        score,
        Tile(64, 64, 64, 4, 1),
        Tile(128, 64, 64, 4, 1),
        Tile(128, 128, 64, 8, 1),
        Tile(64, 256, 64, 8, 1),
        Tile(32, 256, 64, 4, 1),
        replace(score, inner=16, stages=3),
    ):
        yield "scores", tile, partial(product, q, k.transpose(2, 3), squares, tile, 0.1)
    squares = torch.randn_like(squares)
    for tile in (
        value,
        replace(value, stages=2),
        replace(value, stages=4),
        replace(value, rows=128),
        replace(value, rows=128, warps=8),
        replace(value, inner=32, stages=4),
        replace(value, inner=128, stages=2),
    ):
        yield "values", tile, partial(product, squares, v, out, tile)
        yield "values transposed", tile, partial(product, squares.transpose(2, 3), v, out, tile)


def mixing_jobs(case: Case) -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    """Forward and backward mixing, each with several walks."""
    from alltokens.models.talking_heads_kernels import Walk, mix, mix_backward, mixing_walk

    shape = case.b, case.h, case.n, -(-case.n // 16) * 16
    scores, gradients = torch.randn(2, *shape, device=DEVICE).bfloat16().unbind(0)
    weights = [torch.randn(x, device=DEVICE) / case.h**0.5 for x in ((case.h, case.h), (case.h, case.h), (case.h,))]
    start = mixing_walk(scores)
    widths = (128,) if case.n <= 256 else (64, 128, 1024)
    walks = [start, *(replace(start, columns=x, warps=max(2, x // 64)) for x in widths), Walk(16, 128, 8, 4, 2)]
    if case.n <= 256:
        walks += [replace(start, warps=x) for x in (2, 8, 16)] + [replace(start, stages=x) for x in (1, 3)]
        walks += [replace(start, steps=x) for x in (4, 16)]
        walks.append(Walk(16, 128, 8, 8, 2))
    for walk in walks:
        yield "mix", walk, partial(mix, scores, *weights, walk)
        yield "mix backward", walk, partial(mix_backward, scores, gradients, *weights, walk)


def tune(report: Report, started: float) -> None:
    """Kernels one by one; the first row of each kind is the tile in use."""
    for case, jobs in (
        (Case(256, 8, 196), mixing_jobs),
        (Case(256, 8, 196), product_jobs),
        (Case(64, 8, 576), mixing_jobs),
    ):
        for kind, settings, job in jobs(case):
            if time.perf_counter() - started > TUNING_ENDS_AFTER:
                report.failures.append(f"no time left for {kind} {case}")
                return
            with report.surviving(f"{kind} {settings}"):
                row = {"kind": kind, "case": str(case), "settings": asdict(settings), "us": 1000 * milliseconds(job)}
                report.tiles.append(row)
        torch.cuda.empty_cache()


def table(report: Report) -> Iterator[str]:
    """The rows worth reading, the most important last."""
    kinds = dict.fromkeys((row["kind"], row["case"]) for row in report.tiles)
    for kind, case in kinds:
        rows = [row for row in report.tiles if (row["kind"], row["case"]) == (kind, case)]
        yield f"{kind} {case}"
        for place, row in enumerate(rows):
            best = "<- best" if row["us"] == min(other["us"] for other in rows) else ""
            settings = " ".join(f"{name}={value}" for name, value in row["settings"].items())
            yield f"  {row['us']:7.1f} us  {settings} {'(in use)' if place == 0 else ''} {best}"
    yield from (f"FAILED {failure}" for failure in report.failures)
    wrong = sum(row["wrong"] for row in report.errors)
    yield f"checks: {len(report.errors)}, wrong: {wrong}"
    for row in report.attention:
        timings = f"forward {row['forward_ms']:8.3f} ms  training {row['training_ms']:8.3f} ms"
        memory = f"  {row['training_mb']:7.0f} MB" if CUDA else ""
        yield f"{row['case']:24} {row['name']:6} {'compiled' if row['compiled'] else 'eager':8} {timings}{memory}"


def main() -> int:
    """Check, compare, tune, write."""
    started = time.perf_counter()
    torch.manual_seed(0)
    if not CUDA:
        torch.set_num_threads(1)  # threads that wait for one another on a busy machine measure its other work
    report = Report()
    if CUDA:
        check(report)
    compare(report)
    if CUDA:
        with report.surviving("tuning"):
            tune(report, started)
    device = torch.cuda.get_device_name() if CUDA else f"{platform.machine()}, {torch.get_num_threads()} threads"
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"device": device, "torch": torch.__version__, **asdict(report)}, indent=1) + "\n")
    print(f"\n{device}, torch {torch.__version__}, {time.perf_counter() - started:.0f} s")
    print("\n".join(table(report)))
    return int(any(row["wrong"] for row in report.errors))


if __name__ == "__main__":
    sys.exit(main())
