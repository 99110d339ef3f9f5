"""One training step of LV-ViT-S with token labels on a GPU, as the trainer takes it: how long, and what holds it up.

    python benchmarks/step.py       # on a GPU bf16, batch 256: targets, MixToken, optimizer and average included

Counted over the steps after the first ones: graphs that are compiled again, and calls by which the host waits for the
device. The trainer waits for an event of the step before, once a step, when the whole step has been handed over.
Without a GPU there is only what it costs to keep what is not finite out of the weights, in float32 with batches of 8.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from timing import elapsed, environment, median_seconds, write_results
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

from alltokens.data.batch import Batch
from alltokens.labels.score_map import ScoreMaps
from alltokens.processes import Processes
from alltokens.recipes.token_labeling import supervised
from alltokens.train.config import TrainConfig
from alltokens.train.machine import Machine
from alltokens.train.optimizer import FiniteCheck, OptimizerConfig, clip_gradients, hold_back
from alltokens.train.training import Training

CUDA = torch.cuda.is_available()
BATCH, BATCHES = 256 if CUDA else 8, 4
FIRST_STEPS, STEPS = (8, 20) if CUDA else (1, 3)
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


def prepared(config: TrainConfig) -> TrainConfig:
    """A recipe's config for steps of a benchmark."""
    return replace(
        config,
        batch=BATCH,
        precision="bf16" if CUDA else "float32",
        # The final rate is meant for large batches.
        optimizer=OptimizerConfig(reference_batch=None),
    )


def ready_batch(config: TrainConfig, seed: int) -> Batch:
    """Random pixels, labels of 18 x 18 cells and crops, in memory that a GPU copies from by itself."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(BATCH, 5, 18, 18, generator=generator).sort(1, descending=True).values
    maps = ScoreMaps.of_whole_images(
        torch.randint(1000, (BATCH, 5, 18, 18), dtype=torch.int32, generator=generator),
        logits,
        logits.logsumexp(1) + 0.5,
    )
    side = torch.empty(BATCH).uniform_(0.3, 1.0, generator=generator)
    corner = (1 - side)[:, None] * torch.rand(BATCH, 2, generator=generator)
    views = torch.zeros(BATCH, 2, 3)
    views[:, 0, 0], views[:, 1, 1], views[:, :, 2] = side, side, corner
    pixels = torch.randint(256, (BATCH, *config.model.image_size, 3), dtype=torch.uint8, generator=generator)
    batch = Batch(
        images=pixels.permute(0, 3, 1, 2),
        classes=torch.randint(1000, (BATCH,), generator=generator),
        score_maps=maps,
        views=views,
        keys=tuple(map(str, range(BATCH))),
        seeds=torch.randint(2**62, (BATCH,), generator=generator),
    )
    return batch.pin_memory() if CUDA else batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    config = prepared(supervised("lvvit_s", "token_labels"))
    machine = Machine(torch.device("cuda" if CUDA else "cpu"), workers=0, compile=CUDA)
    figures: dict[str, Any] = {"batch": BATCH}
    with machine.at_work():
        training = Training(config, 5000, machine, Processes(0, 1))
        batches = [ready_batch(config, seed) for seed in range(BATCHES)]

        def step() -> None:
            training.take_step([batches[training.step % BATCHES]])

        for _ in range(FIRST_STEPS):
            step()
        graphs = counters["stats"]["unique_graphs"]
        seconds = elapsed(step, STEPS) / STEPS
        figures |= {"step_ms": round(1e3 * seconds, 2), "images_per_second": round(BATCH / seconds, 1)}
        figures["host_ms"] = round(1e3 * median(handed_over(step) for _ in range(STEPS)), 2)
        figures |= cost_of_check(training, seconds)
        if CUDA:
            figures |= {
                "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
                "graphs": graphs,
                "graphs_compiled_later": counters["stats"]["unique_graphs"] - graphs,
                "hidden_waits": hidden_waits(step),
                **profiled(step),
            }
    write_results("step" if CUDA else "step_cpu", environment() | figures)
    for key, value in figures.items():
        print(f"{key:28} {value}")


def handed_over(step: Any) -> float:
    """Seconds until the host has asked for a whole step, of a device that has nothing else to do."""
    if CUDA:
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def hidden_waits(step: Any) -> list[str]:
    """Where torch itself says that a step waits for the device, as reading a number does; for an event does not."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        for _ in range(STEPS):
            step()
        torch.cuda.set_sync_debug_mode("default")
    # That this way of looking is a prototype is said as well.
    return sorted({f"{one.filename}:{one.lineno}" for one in said if "called a synchronizing" in str(one.message)})


def profiled(step: Any) -> dict[str, Any]:
    """What the host waits for, and how long the device is at work; the profiler holds the host up."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        asked = time.perf_counter() - start
        torch.cuda.synchronize()
        wall = time.perf_counter() - start
    kernels = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    busy = covered([(e.time_range.start, e.time_range.end) for e in kernels]) / 1e6
    waits = {name: sum(e.name == name for e in seen.events()) / STEPS for name in WAITS}
    # The call before and the call after the steps are this program's own.
    waits["cudaDeviceSynchronize"] -= min(waits["cudaDeviceSynchronize"], 2 / STEPS)
    return {
        "host_waits_a_step": {name: round(count, 2) for name, count in waits.items() if count},
        "kernels_a_step": round(len(kernels) / STEPS, 1),
        "device_ms": round(1e3 * busy / STEPS, 2),
        "device_busy": round(busy / wall, 4),
        "host_done_before_device_s": round(wall - asked, 4),
    }


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of what the spans cover together."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def cost_of_check(training: Training, seconds: float) -> dict[str, float]:
    """Keeping what is not finite out of the weights, as a share of the step."""
    optimizer = training.optimizer
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    loss = torch.zeros((), device=parameters[0].device)

    def checked() -> None:
        check = FiniteCheck(0, {"loss": loss, "gradient": clip_gradients(parameters, None)})
        hold_back(optimizer, check.broken)
        optimizer.step()

    with_check = device_seconds(checked)
    if CUDA:
        del training.optimizer.found_inf  # type: ignore[attr-defined]
    return {"finite_check_share": round((with_check - device_seconds(optimizer.step)) / seconds, 5)}


def device_seconds(call: Callable[[], Any], count: int = 8) -> float:
    """Of one call, where the host is ahead of the device, as it is in a step."""
    if not CUDA:
        return median_seconds({"call": call}, 1.0)["call"]
    call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10**8)  # cycles
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count / 1e3


if __name__ == "__main__":
    main()
