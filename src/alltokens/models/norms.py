"""Norms within a token, with one scale and shift for each parallel branch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alltokens.models.config import GroupNorm, NoNorm, Norm
from alltokens.shapes import Float


class TokenNorm(nn.Module):
    """Normalises each token, then scales and shifts it as one of the branches wants it."""

    def __init__(self, config: Norm, width: int, branches: int = 1) -> None:
        super().__init__()
        self.config, self.width = config, width
        affine = not isinstance(config, NoNorm)
        self.weight = nn.Parameter(torch.empty(branches * width)) if affine else None
        self.bias = nn.Parameter(torch.empty(branches * width)) if affine else None

    def forward(self, x: Float[Tensor, "*b n d"], branch: int = 0) -> Float[Tensor, "*b n d"]:
        if self.weight is None or self.bias is None:
            return self.normalize(x)
        here = slice(branch * self.width, (branch + 1) * self.width)
        weight, bias = self.weight[here], self.bias[here]
        if isinstance(self.config, GroupNorm):
            return self.normalize(x) * weight + bias
        assert not isinstance(self.config, NoNorm)
        return F.layer_norm(x, (self.width,), weight, bias, self.config.eps)

    def normalize(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """Zero mean and unit variance, before any branch's scale and shift."""
        if isinstance(self.config, NoNorm):
            return x
        groups = self.config.groups if isinstance(self.config, GroupNorm) else 1
        split = x.unflatten(-1, (groups, self.width // groups))
        return F.layer_norm(split, split.shape[-1:], eps=self.config.eps).flatten(-2)

    def extra_repr(self) -> str:
        return f"{self.config}, width={self.width}"
