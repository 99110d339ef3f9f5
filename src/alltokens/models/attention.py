"""Attention between tokens, for all parallel branches at once, and attention of the class token alone."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alltokens.models.config import ViTConfig
from alltokens.models.positions import relative_entries
from alltokens.models.talking_heads import talking_heads
from alltokens.shapes import Float, Int


class DotProduct(nn.Module):
    """Scaled dot-product attention on projected queries, keys and values."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.attention_dropout
        self.class_position = config.class_position
        relative = config.positions == "relative"
        entries = relative_entries(config.grid, config.class_position)
        self.table = nn.Parameter(torch.empty(entries, config.branches * config.heads)) if relative else None

    def forward(
        self, qkv: Float[Tensor, "b n qkv"], branches: range, pairs: Int[Tensor, "n n"] | None
    ) -> Float[Tensor, "b n c"]:
        q, k, v = split_heads(qkv, len(branches) * self.heads)
        bias = None if self.table is None or pairs is None else self.bias(branches, pairs).to(q.dtype)
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, bias, dropout).transpose(1, 2).flatten(2)

    def bias(self, branches: range, pairs: Int[Tensor, "n n"]) -> Float[Tensor, "heads n n"]:
        """What each pair of tokens adds to its attention logit; nothing for class tokens without a position."""
        assert self.table is not None
        table = self.table[:, branches.start * self.heads : branches.stop * self.heads]
        if self.class_position:
            return table[pairs].permute(2, 0, 1)
        known = pairs < len(table)
        return (table[pairs.where(known, 0)] * known[..., None]).permute(2, 0, 1)


class TalkingHeads(nn.Module):
    """Attention whose heads are mixed before and after the softmax (CaiT, section 4.3)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        heads = config.heads
        self.heads, self.dropout = heads, config.attention_dropout
        self.before = nn.Parameter(torch.empty(config.branches * heads, heads))
        self.before_bias = nn.Parameter(torch.empty(config.branches * heads))
        self.after = nn.Parameter(torch.empty(config.branches * heads, heads))
        self.after_bias = nn.Parameter(torch.empty(config.branches * heads))

    def forward(
        self, qkv: Float[Tensor, "b n qkv"], branches: range, pairs: Int[Tensor, "n n"] | None
    ) -> Float[Tensor, "b n c"]:
        assert pairs is None, "talking heads take no relative positions"
        dropout = self.dropout if self.training else 0.0
        q, k, v = (x.chunk(len(branches), 1) for x in split_heads(qkv, len(branches) * self.heads))
        answers = []
        for place, branch in enumerate(branches):
            here = slice(branch * self.heads, (branch + 1) * self.heads)
            mixing = self.before[here], self.before_bias[here], self.after[here], self.after_bias[here]
            answers.append(talking_heads(q[place], k[place], v[place], *mixing, dropout=dropout))
        return torch.cat([answer.transpose(1, 2).flatten(2) for answer in answers], 2)


def split_heads(qkv: Float[Tensor, "b n qkv"], heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [b, heads, n, c] as views."""
    q, k, v = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v
