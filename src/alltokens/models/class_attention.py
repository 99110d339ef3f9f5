"""Blocks after the trunk in which the class tokens read the other tokens and only they are updated (CaiT)."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alltokens.models.block import Branches, Gain, Gelu
from alltokens.models.config import ClassAttention, ViTConfig
from alltokens.models.norms import TokenNorm
from alltokens.shapes import Float


class ClassBlock(nn.Module):
    """Class attention, then an MLP on the class tokens alone."""

    def __init__(self, config: ViTConfig, stage: ClassAttention) -> None:
        super().__init__()
        single = replace(config, branches=1, residual=config.class_residual)
        self.attention = ClassRead(single, stage.class_in_keys)
        self.mlp = Branches(single, Gelu(single), 1, config.mlp_width, drop_path=0.0)

    def forward(self, class_tokens: Float[Tensor, "b t d"], tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b t d"]:
        return self.mlp(self.attention(class_tokens, tokens))


class ClassRead(nn.Module):
    """The class tokens' queries on all keys, added to the class tokens (CaiT, eq. 5 to 9)."""

    def __init__(self, config: ViTConfig, class_in_keys: bool) -> None:
        super().__init__()
        self.heads, self.class_in_keys = config.heads, class_in_keys
        self.attention_dropout = config.attention_dropout
        self.norm = TokenNorm(config.norm, config.width)
        self.query = nn.Linear(config.width, config.attention_width, bias=config.qkv_bias)
        self.key_value = nn.Linear(config.width, 2 * config.attention_width, bias=config.qkv_bias)
        self.output = nn.Linear(config.attention_width, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.gain = Gain(config.residual, config.width)

    def forward(self, class_tokens: Float[Tensor, "b t d"], tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b t d"]:
        t = class_tokens.shape[1]
        z = self.norm(torch.cat((class_tokens, tokens), 1))
        q = self.query(z[:, :t]).unflatten(2, (self.heads, -1)).transpose(1, 2)
        keys = z if self.class_in_keys else z[:, t:]
        k, v = self.key_value(keys).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.attention_dropout if self.training else 0.0
        read = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).transpose(1, 2).flatten(2)
        return class_tokens + self.gain(self.dropout(self.output(read)))
