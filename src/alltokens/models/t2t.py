"""The tokens-to-token stem (T2T-ViT): overlapping windows become tokens, three times, with attention in between."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alltokens.models.block import Branches, Gelu
from alltokens.models.config import LayerNorm, T2TStem, ViTConfig
from alltokens.models.norms import TokenNorm
from alltokens.shapes import Float

SPLITS = ((7, 4, 2), (3, 2, 1), (3, 2, 1))
"""Kernel, stride and padding of each soft split; the strides multiply to the patch."""
NORM = LayerNorm(eps=1e-5)
"""Of the stem alone; the trunk has its own."""


class TokensToToken(nn.Module):
    """Soft splits with a token module after each but the last, which a linear map follows."""

    def __init__(self, config: ViTConfig, stem: T2TStem) -> None:
        super().__init__()
        first, second, last = (kernel**2 for kernel, _, _ in SPLITS)
        windows = first * config.channels, second * stem.width
        self.stages = nn.ModuleList(TokenModule(channels, stem) for channels in windows)
        self.projection = nn.Linear(last * stem.width, config.width)

    def forward(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b h w d"]:
        x = images
        for stage, split in zip(self.stages, SPLITS[:-1], strict=True):
            grid = soft_split(x, *split)
            x = stage(grid.flatten(1, 2)).transpose(1, 2).unflatten(2, grid.shape[1:3])
        return self.projection(soft_split(x, *SPLITS[-1]))


def soft_split(x: Float[Tensor, "b c H W"], kernel: int, stride: int, padding: int) -> Float[Tensor, "b h w ckk"]:
    """Every window as one token, its values ordered (channel, row, column)."""
    h, w = ((side + 2 * padding - kernel) // stride + 1 for side in x.shape[2:])
    return F.unfold(x, kernel, padding=padding, stride=stride).unflatten(2, (h, w)).permute(0, 2, 3, 1)


class TokenModule(nn.Module):
    """One attention head and an MLP; attention is added to the values, since its input is of another width."""

    def __init__(self, channels: int, stem: T2TStem) -> None:
        super().__init__()
        inside = ViTConfig(width=stem.width, depth=1, heads=1, mlp_ratio=1.0, norm=NORM)
        performs = stem.attention == "performer"
        self.norm = TokenNorm(NORM, channels)
        self.input = nn.Linear(channels, 3 * stem.width, bias=performs)
        self.performer = Performer(stem.width, stem.features or 32) if performs else None
        self.output = nn.Linear(stem.width, stem.width)
        self.mlp = Branches(inside, Gelu(inside), 1, inside.mlp_width, drop_path=0.0)

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n d"]:
        q, k, v = self.input(self.norm(x)).chunk(3, 2)
        if self.performer is not None:
            answer = self.performer(q, k, v)
        else:
            # Fused kernels want a dimension of heads.
            answer = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return self.mlp(v + self.output(answer))


class Performer(nn.Module):
    """Attention with the kernel phi(q) phi(k) of positive random features, in time linear in the tokens."""

    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.directions = nn.Buffer(torch.empty(features, width))

    def forward(
        self, q: Float[Tensor, "b n d"], k: Float[Tensor, "b n d"], v: Float[Tensor, "b n d"]
    ) -> Float[Tensor, "b n d"]:
        # A feature reaches e^(|direction|^2 / 2) = e^16, beyond float16, and eps is 0 in it.
        precise = torch.promote_types(v.dtype, torch.float32)
        with without_autocast(v.device):
            q, k = self.features(q.to(precise)), self.features(k.to(precise))
            answer = q @ (k.transpose(1, 2) @ v.to(precise))
            total = q @ k.sum(1)[..., None]
            return (answer / (total + 1e-8)).to(v.dtype)

    def features(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n m"]:
        """phi(x) = exp(W x - |x|^2 / 2) / sqrt(m) for the m frozen directions W."""
        directions = self.directions.to(x.dtype)
        exponents = x @ directions.T - x.square().sum(2, keepdim=True) / 2
        return exponents.exp() / len(directions) ** 0.5


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Operations keep the types of their inputs; the meta device has no autocast and refuses to switch it off."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
