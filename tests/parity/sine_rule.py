"""Rule-made weights: sines whose size shows every mistake that default initialisation would hide."""

import torch
from torch import Tensor


def sine_tensor(number: int, shape: tuple[int, ...]) -> Tensor:
    """0.05 sin(1 + 0.37 number + 0.11 i) for element i, in float64."""
    places = torch.arange(max(1, torch.Size(shape).numel()), dtype=torch.float64)
    return (0.05 * torch.sin(1 + 0.37 * number + 0.11 * places)).reshape(shape)


def sine_state(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, Tensor]:
    """A state dict for these keys and shapes; scales of norms and gains are near 1, variances at least 1."""
    state = {}
    for number, key in enumerate(sorted(shapes)):
        values = sine_tensor(number, tuple(shapes[key]))
        *modules, kind = key.split(".")
        if kind == "num_batches_tracked":
            state[key] = torch.zeros((), dtype=torch.int64)
            continue
        scale = kind == "weight" and bool(modules) and modules[-1].startswith(("norm", "bn"))
        if scale or kind.startswith("gamma"):
            values = 1 + values
        elif kind == "running_var":
            values = 1 + values.abs()
        state[key] = values.to(dtype)
    return state


def sine_images(batch: int, channels: int, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """sin(0.013 i) as a batch of images."""
    count = batch * channels * height * width
    return torch.sin(0.013 * torch.arange(count, dtype=torch.float64)).reshape(batch, channels, height, width).to(dtype)
