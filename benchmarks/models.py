"""Speed of our models over timm's, of parallel over sequential blocks, and of LV-ViT inference, in one run.

    python benchmarks/models.py                  # everything this device can show
    python benchmarks/models.py --only cait      # the rows whose name contains a word
    python benchmarks/models.py --resume         # skip the rows already in the results of the same device

Training is a whole step (forward, loss, backward, fused AdamW); on a GPU under bf16 autocast, inference with bf16
weights, ours folded. Every row is written to benchmarks/results/models.json (models_cpu.json without a GPU) as soon as
it is known.
"""

import argparse
import gc
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import timm
import torch
from timing import environment, median_seconds, read_results, write_results
from torch import Tensor, nn
from torch.nn import functional as F

from alltokens.models.fold import fold
from alltokens.models.vit import VisionTransformer, run_branches_one_by_one
from alltokens.models.zoo import find

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
PEERS = {
    "cait_s24": "cait_s24_224",
    "cait_xxs24": "cait_xxs24_224",
    "deit_s": "deit_small_patch16_224",
    "vit_s_18x2_ls": "vit_small_patch16_18x2_224",
}
TRAIN_BATCH, INFER_BATCH = (256, 128) if CUDA else (8, 8)
PARALLEL_BATCHES = 1, 2, 4, 8, 16, 32, 64
LVVIT_BATCH = 256
SECONDS = 2.0 if CUDA else 15.0

Figures = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of the results: its name and how to measure it."""

    name: str
    measure: Callable[[], Figures]


def rows() -> Iterator[Row]:
    """All rows, the ones of most interest first."""
    if CUDA:
        yield Row("lvvit_s_infer", lvvit_inference)
        for size in ("s", "b"):
            yield Row(f"vit_{size}_18x2_over_36", partial(parallel_against_deep, size))
    for compiled in (True, False):
        for ours in PEERS:
            for training in (True, False):
                kind = f"{'train' if training else 'infer'}_{'compiled' if compiled else 'eager'}"
                yield Row(f"{ours}_{kind}", partial(against_timm, ours, training, compiled))


def against_timm(name: str, training: bool, compiled: bool) -> Figures:
    """Images a second of both, and ours over timm's, with equal drop path."""
    config = find(name)
    batch = TRAIN_BATCH if training else INFER_BATCH
    model = VisionTransformer(config)
    ours = model if training else fold(model)
    theirs = timm.create_model(PEERS[name], drop_path_rate=config.drop_path)
    prepare = training_step if training else inference
    rivals = {"ours": prepare(ours, batch, compiled), "timm": prepare(theirs, batch, compiled)}
    seconds = median_seconds(rivals, SECONDS)
    rates = {key: batch / value for key, value in seconds.items()}
    rounded = {key: round(value, 1 if CUDA else 3) for key, value in rates.items()}
    return {"batch": batch, **rounded, "ratio": round(rates["ours"] / rates["timm"], 4)}


def lvvit_inference() -> Figures:
    """LV-ViT-S with the published evaluation rule."""
    config = find("lvvit_s")
    model = Scores(fold(VisionTransformer(config)), config.token_weight)
    calls = {key: inference(model, LVVIT_BATCH, key == "compiled") for key in ("compiled", "eager")}
    rates = {key: round(LVVIT_BATCH / value, 1) for key, value in median_seconds(calls, SECONDS).items()}
    return {"batch": LVVIT_BATCH, **rates, "images_per_second": max(rates.values())}


def parallel_against_deep(size: str) -> Figures:
    """Two branches in 18 blocks, run as one wide product or in turn, over 36 blocks (3T, Table 4), batch by batch."""
    models = {
        "deep": VisionTransformer(find(f"vit_{size}_36x1")),
        "wide": VisionTransformer(find(f"vit_{size}_18x2")),
        "in_turn": VisionTransformer(find(f"vit_{size}_18x2")),
    }
    run_branches_one_by_one(models["in_turn"])
    # CUDA graphs, compiled once for batch 1 and once for all others.
    compiled = {
        key: torch.compile(on_device(fold(model)), fullgraph=True, mode="reduce-overhead")
        for key, model in models.items()
    }
    figures = {}
    for batch in PARALLEL_BATCHES:
        images = random_images(batch).to(torch.bfloat16, memory_format=torch.channels_last)
        if batch > 1:
            torch._dynamo.mark_dynamic(images, 0)
        calls = {key: partial(forward, model, images) for key, model in compiled.items()}
        rates = {key: round(batch / value, 1) for key, value in median_seconds(calls, SECONDS / 2).items()}
        figures[f"batch{batch}"] = {**rates, "ratio": round(max(rates["wide"], rates["in_turn"]) / rates["deep"], 4)}
        print(f"  vit_{size}_18x2 batch {batch}: {figures[f'batch{batch}']}", flush=True)
    return figures


class Scores(nn.Module):
    """A model that answers evaluation scores."""

    def __init__(self, model: VisionTransformer, token_weight: float) -> None:
        super().__init__()
        self.model, self.token_weight = model, token_weight

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).scores(self.token_weight)


def training_step(model: nn.Module, batch: int, compiled: bool, graphs: bool = False) -> Callable[[], Any]:
    """A whole step on ready tensors; `graphs` hands a compiled one to the GPU as a whole."""
    model.to(DEVICE).train()
    images, classes = random_images(batch), torch.randint(0, 1000, (batch,), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)

    def loss(images: Tensor, classes: Tensor) -> Tensor:
        answer = model(images)
        logits = answer if isinstance(answer, Tensor) else answer.image_logits
        return F.cross_entropy(logits.float(), classes)

    mode = "reduce-overhead" if graphs else None
    compiled_loss = torch.compile(loss, fullgraph=True, mode=mode) if compiled else loss

    def step() -> None:
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            value = compiled_loss(images, classes)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def inference(model: nn.Module, batch: int, compiled: bool) -> Callable[[], Any]:
    """A forward pass on ready tensors, with bf16 weights on a GPU."""
    model = on_device(model)
    images = random_images(batch).to(next(model.parameters()).dtype, memory_format=torch.channels_last)
    return partial(forward, torch.compile(model, fullgraph=True) if compiled else model, images)


def on_device(model: nn.Module) -> nn.Module:
    """Ready for inference here."""
    dtype = torch.bfloat16 if CUDA else torch.float32
    return model.to(DEVICE, dtype, memory_format=torch.channels_last).eval()


def forward(model: Callable[[Tensor], Any], images: Tensor) -> Any:
    """The model's answer without a graph for gradients."""
    with torch.inference_mode():
        return model(images)


def random_images(batch: int) -> Tensor:
    """Normal noise; zeros can run faster than real data."""
    return torch.randn(batch, 3, 224, 224, device=DEVICE)


def headline(measured: dict[str, Figures]) -> dict[str, float]:
    """The figures people ask for first, from the rows measured so far."""
    figures = {}
    for mode in ("train", "infer"):
        figures[f"cait_s24_{mode}_over_timm"] = measured.get(f"cait_s24_{mode}_compiled", {}).get("ratio")
    figures["lvvit_s_infer_images_per_second"] = measured.get("lvvit_s_infer", {}).get("images_per_second")
    for size in ("s", "b"):
        for batch, row in measured.get(f"vit_{size}_18x2_over_36", {}).items():
            figures[f"vit_{size}_18x2_over_36_{batch}"] = row["ratio"]
    return {key: value for key, value in figures.items() if value is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="measure only rows whose name contains this")
    parser.add_argument("--resume", action="store_true", help="keep rows already measured on this device")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    name = "models" if CUDA else "models_cpu"
    here, before = environment(), read_results(name)
    same = arguments.resume and before.get("device") == here["device"]
    measured = before["rows"] if same else {}
    for row in rows():
        if arguments.only not in row.name or row.name in measured:
            continue
        try:
            measured[row.name] = row.measure()
        except Exception:  # One failing row must not cost the others their turn on a borrowed machine.
            traceback.print_exc()
            continue
        print(f"{row.name:32} {measured[row.name]}", flush=True)
        write_results(name, {**here, **headline(measured), "rows": measured})
        torch.compiler.reset()
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
