"""What tells a token where it is: learned, sinusoidal or relative positions."""

import torch
from torch import Tensor, nn

from alltokens.models.config import ViTConfig
from alltokens.shapes import Float, Int


class Positions(nn.Module):
    """A vector added to each token, class tokens first where they have one."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.kind, self.width = config.positions, config.width
        self.class_tokens = config.class_tokens if config.class_position else 0
        h, w = config.grid
        learned = config.positions == "learned"
        self.table = nn.Parameter(torch.empty(self.class_tokens + h * w, config.width)) if learned else None

    def of_tokens(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """The grid's tokens with their positions."""
        return self.add(x, self.class_tokens)

    def of_class(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """The class tokens with theirs."""
        return self.add(x, 0) if self.class_tokens else x

    def add(self, x: Float[Tensor, "b n d"], first: int) -> Float[Tensor, "b n d"]:
        """Add the positions from `first` on."""
        last = first + x.shape[1]
        if self.table is not None:
            return x + self.table[first:last]
        if self.kind == "sinusoidal":
            precise = torch.promote_types(x.dtype, torch.float32)
            return x + sinusoids(torch.arange(first, last, device=x.device, dtype=precise), self.width).to(x.dtype)
        return x


def sinusoids(places: Float[Tensor, " n"], width: int) -> Float[Tensor, "n d"]:
    """Sine and cosine of geometrically spaced frequencies in alternating channels (TL-v1, section 3.1)."""
    even = torch.arange(0, width, 2, device=places.device, dtype=places.dtype)
    angles = places[:, None] / 10000 ** (even / width)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :width]


def relative_entries(grid: tuple[int, int], class_position: bool) -> int:
    """Rows of a relative position table: every offset, and three kinds of pairs with a class token (BeiT)."""
    h, w = grid
    return (2 * h - 1) * (2 * w - 1) + 3 * class_position


def relative_pairs(grid: tuple[int, int], class_tokens: int, device: torch.device) -> Int[Tensor, "m m"]:
    """The table's row for each query and key, class tokens first."""
    h, w = grid
    row = torch.arange(h, device=device).repeat_interleave(w)
    column = torch.arange(w, device=device).repeat(h)
    rows = row[:, None] - row[None, :] + h - 1
    offsets = rows * (2 * w - 1) + column[:, None] - column[None, :] + w - 1
    entries = relative_entries(grid, class_position=True)
    from_class = offsets.new_full((class_tokens, h * w), entries - 3)
    to_class = offsets.new_full((h * w, class_tokens), entries - 2)
    among_class = offsets.new_full((class_tokens, class_tokens), entries - 1)
    return torch.cat((torch.cat((among_class, from_class), 1), torch.cat((to_class, offsets), 1)))
