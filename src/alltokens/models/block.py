"""A block: attention branches in parallel, then MLP branches in parallel."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alltokens.models.attention import DotProduct, TalkingHeads
from alltokens.models.config import Fixup, LayerScale, Plain, Residual, Scaled, ViTConfig
from alltokens.models.norms import TokenNorm
from alltokens.shapes import Float, Int


class Gain(nn.Module):
    """What multiplies a branch before it is added: nothing, a constant, a learned number or a learned vector."""

    def __init__(self, residual: Residual, width: int, branches: int = 1) -> None:
        super().__init__()
        self.residual, self.branches = residual, branches
        self.divide_by = residual.divide_by if isinstance(residual, Scaled) else 1.0
        size = width if isinstance(residual, LayerScale) else 1
        learned = not isinstance(residual, LayerScale) or residual.learned
        fixed = isinstance(residual, Plain | Scaled)
        self.weight = None if fixed else nn.Parameter(torch.empty(branches * size), requires_grad=learned)

    def forward(self, x: Float[Tensor, "b n d"], branch: int = 0) -> Float[Tensor, "b n d"]:
        if self.divide_by != 1.0:
            return x / self.divide_by
        return x if self.weight is None else x * self.weight.unflatten(0, (self.branches, -1))[branch]

    def fold(
        self, weight: Float[Tensor, "d c"], biases: Float[Tensor, "branches d"]
    ) -> tuple[Float[Tensor, "d c"], Float[Tensor, "branches d"]]:
        """The output projections of all branches with their gains inside."""
        if self.divide_by != 1.0:
            return weight / self.divide_by, biases / self.divide_by
        if self.weight is None:
            return weight, biases
        rows = self.weight.unflatten(0, (self.branches, -1))
        return (weight.unflatten(1, (self.branches, -1)) * rows.T[..., None]).flatten(1), biases * rows


class Gelu(nn.Module):
    """The MLP's activation and dropout, with Fixup's scalar bias before them where there is one."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.shift = nn.Parameter(torch.empty(1)) if isinstance(config.residual, Fixup) else None

    def forward(
        self, x: Float[Tensor, "b n c"], branches: range, pairs: Int[Tensor, "n n"] | None
    ) -> Float[Tensor, "b n c"]:
        return self.dropout(F.gelu(x if self.shift is None else x + self.shift))


class Branches(nn.Module):
    """Norm, projection, operation, projection, gain and drop path of parallel branches, added to their input.

    The weights of all branches lie side by side, so that they run as one wide product: rows of the first projection
    are ordered (part, branch, channel) with queries, keys and values as parts, columns of the second (branch, channel).
    """

    def __init__(self, config: ViTConfig, operation: nn.Module, parts: int, inner: int, drop_path: float) -> None:
        super().__init__()
        self.parts, self.branches, self.drop_path = parts, config.branches, drop_path
        self.post, self.one_by_one = config.norm_position == "post", False
        self.norm = TokenNorm(config.norm, config.width, config.branches)
        self.input = nn.Linear(config.width, parts * config.branches * inner, bias=parts == 1 or config.qkv_bias)
        self.operation = operation
        self.output = nn.Linear(config.branches * inner, config.width, bias=False)
        self.output_bias = nn.Parameter(torch.empty(config.branches * config.width))
        self.dropout = nn.Dropout(config.dropout)
        self.gain = Gain(config.residual, config.width, config.branches)
        self.shifts = nn.Parameter(torch.empty(2)) if isinstance(config.residual, Fixup) else None

    def forward(self, x: Float[Tensor, "b n d"], pairs: Int[Tensor, "n n"] | None = None) -> Float[Tensor, "b n d"]:
        kept = self.draw_kept(x)
        if self.post:
            return self.norm(x + self.one(x, 0, pairs, kept))
        # Each branch's dropout falls on its own answer, which the wide product never shows.
        separate = self.one_by_one or (self.training and self.dropout.p > 0)
        if self.branches > 1 and not separate:
            return x + self.wide(x, pairs, kept)
        total = x
        for branch in range(self.branches):
            total = total + self.one(self.norm(x, branch), branch, pairs, kept)
        return total

    def one(
        self, x: Float[Tensor, "b n d"], branch: int, pairs: Int[Tensor, "n n"] | None, kept: Tensor | None
    ) -> Float[Tensor, "b n d"]:
        """One branch on its normalised input."""
        weight, bias = self.projection_of(branch)
        x = x if self.shifts is None else x + self.shifts[0]
        hidden = self.operation(F.linear(x, weight, bias), range(branch, branch + 1), pairs)
        hidden = hidden if self.shifts is None else hidden + self.shifts[1]
        answer = F.linear(
            hidden, self.output.weight.chunk(self.branches, 1)[branch], self.output_bias.chunk(self.branches)[branch]
        )
        answer = self.gain(self.dropout(answer), branch)
        return answer if kept is None else answer * kept[:, branch, None, None]

    def wide(
        self, x: Float[Tensor, "b n d"], pairs: Int[Tensor, "n n"] | None, kept: Tensor | None
    ) -> Float[Tensor, "b n d"]:
        """The sum of all branches as two wide products around one operation."""
        hidden = self.operation(F.linear(self.norm.normalize(x), *self.folded_input()), range(self.branches), pairs)
        weight, biases = self.gain.fold(self.output.weight, self.output_bias.unflatten(0, (self.branches, -1)))
        if kept is None:
            return F.linear(hidden, weight, biases.sum(0))
        hidden = (hidden.unflatten(2, (self.branches, -1)) * kept[:, None, :, None]).flatten(2)
        return F.linear(hidden, weight) + (kept @ biases.to(kept.dtype))[:, None]

    def projection_of(self, branch: int) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of one branch's first projection."""
        if self.branches == 1:
            return self.input.weight, self.input.bias
        shape = (self.parts, self.branches, -1)
        weight = self.input.weight.unflatten(0, shape)[:, branch].flatten(0, 1)
        bias = self.input.bias
        return weight, None if bias is None else bias.unflatten(0, shape)[:, branch].flatten()

    def folded_input(self) -> tuple[Tensor, Tensor | None]:
        """The first projection of all branches with each one's norm scale and shift inside."""
        weight, bias = self.input.weight, self.input.bias
        if self.norm.weight is None or self.norm.bias is None:
            return weight, bias
        rows = weight.unflatten(0, (self.parts, self.branches, -1))
        scale, shift = (x.unflatten(0, (self.branches, 1, -1)) for x in (self.norm.weight, self.norm.bias))
        shifted = (rows * shift).sum(-1).flatten()
        return (rows * scale).flatten(0, 2), shifted if bias is None else shifted + bias

    def draw_kept(self, x: Float[Tensor, "b n d"]) -> Tensor | None:
        """For each image and branch 0 where drop path drops it, else 1 / (1 - drop_path); None where it is off."""
        if self.drop_path == 0.0 or not self.training:
            return None
        keep = 1 - self.drop_path
        return x.new_empty(x.shape[0], self.branches).bernoulli_(keep).div_(keep)


class Block(nn.Module):
    """Attention branches in parallel, then MLP branches in parallel."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        attend = TalkingHeads(config) if config.attention == "talking_heads" else DotProduct(config)
        self.attention = Branches(config, attend, 3, config.attention_width, drop_path)
        self.mlp = Branches(config, Gelu(config), 1, config.mlp_width, drop_path)

    def forward(self, x: Float[Tensor, "b n d"], pairs: Int[Tensor, "m m"] | None = None) -> Float[Tensor, "b n d"]:
        return self.mlp(self.attention(x, pairs))
