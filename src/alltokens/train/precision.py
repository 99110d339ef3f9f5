"""What a model computes in: the type of its weights, autocast, and the scale of fp16's gradients."""

from typing import Literal

import torch
from torch import Tensor

from alltokens.shapes import Float

Kind = Literal["float64", "float32", "bf16", "fp16"]
CASTS: dict[Kind, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """One kind of computing on a device; `scaler.state_dict()` is all of its state."""

    def __init__(self, kind: Kind, device: torch.device) -> None:
        self.kind, self.device = kind, device
        self.weights = torch.float64 if kind == "float64" else None
        """Type of the weights, where it is not the one that they have."""
        # fp16 has no small numbers: gradients are scaled up, and a step in which they overflow is left out.
        self.scaler = torch.amp.GradScaler(device.type, enabled=kind == "fp16")

    def autocast(self) -> torch.autocast:
        """Around everything that the model computes."""
        return torch.autocast(self.device.type, CASTS.get(self.kind, torch.bfloat16), enabled=self.kind in CASTS)

    def judged(self, norm: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The length of a gradient: 0 for one that overflowed, unless even gradients scaled down do."""
        if not self.scaler.is_enabled():
            return norm
        scale = self.scaler.scale(torch.ones_like(norm))
        return torch.where(scale >= 1, norm.nan_to_num(0.0, 0.0, 0.0), norm)

    def counters(self) -> dict[str, int | float | str]:
        """The scaler's state, for a checkpoint."""
        return {f"scaler {name}": value for name, value in self.scaler.state_dict().items()}

    def restore(self, counters: dict[str, int | float | str]) -> None:
        """Go on with the state of a checkpoint."""
        names = [name for name in counters if name.startswith("scaler ")]
        self.scaler.load_state_dict({name.removeprefix("scaler "): counters[name] for name in names})
