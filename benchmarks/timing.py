"""Timing of rivals in one run, and the record of it."""

import json
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import timm
import torch

RESULTS = Path(__file__).parent / "results"


def environment() -> dict[str, str]:
    """Where and with what the figures were taken."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    return {"device": device, "torch": torch.__version__, "timm": timm.__version__, "date": date.today().isoformat()}


def median_seconds(rivals: dict[str, Callable[[], Any]], seconds: float, rounds: int = 7) -> dict[str, float]:
    """Median time of one call of each, measured in turns so that a drift of the machine falls on all of them."""
    calls = {}
    for name, call in rivals.items():
        for _ in range(3):
            call()
        calls[name] = max(1, round(seconds / rounds / len(rivals) / elapsed(call, 1)))
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, call in rivals.items():
            times[name].append(elapsed(call, calls[name]) / calls[name])
    return {name: statistics.median(taken) for name, taken in times.items()}


def elapsed(call: Callable[[], Any], count: int) -> float:
    """Seconds of `count` calls, the device's work included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def read_results(name: str) -> dict[str, Any]:
    """What an earlier run of this benchmark wrote, or nothing."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_results(name: str, results: dict[str, Any]) -> None:
    """Record the figures as benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")
