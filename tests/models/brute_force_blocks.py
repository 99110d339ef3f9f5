"""Blocks of a vision transformer in loops over branches, heads and tokens, as the papers' equations read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import erf, exp, sqrt

import numpy as np

from alltokens.models.config import (
    Fixup,
    GroupNorm,
    LayerNorm,
    LayerScale,
    NoNorm,
    Norm,
    Plain,
    Residual,
    ScalarGain,
    Scaled,
    TFixup,
    ViTConfig,
)

Array = np.ndarray
Tokens = list[Array]
PairBias = Callable[[int, int, int], float]
"""What a head adds to the attention logit of a query's place and a key's place."""


@dataclass(frozen=True)
class Weights:
    """The tensors of one module, by the names they have there."""

    tensors: Mapping[str, Array]
    prefix: str = ""

    def __getitem__(self, name: str) -> Array:
        return self.tensors[self.prefix + name]

    def find(self, name: str) -> Array | None:
        return self.tensors.get(self.prefix + name)

    def under(self, name: str) -> "Weights":
        return Weights(self.tensors, f"{self.prefix}{name}.")


# Arithmetic of one token


def linear(weights: Weights, x: Array) -> Array:
    """W x + b."""
    bias = weights.find("bias")
    return weights["weight"] @ x + (0.0 if bias is None else bias)


def gelu(x: Array) -> Array:
    """x times the normal distribution function at x."""
    return np.array([value * (1 + erf(value / sqrt(2))) / 2 for value in x])


def softmax(logits: list[float]) -> list[float]:
    """Exponentials over their sum."""
    total = sum(exp(logit) for logit in logits)
    return [exp(logit) / total for logit in logits]


def norm(rule: Norm, weights: Weights, x: Array, branch: int = 0) -> Array:
    """A token in groups of channels of mean 0 and variance 1 (TL-v1, Table 9), scaled and shifted for the branch."""
    match rule:
        case NoNorm():
            return x
        case LayerNorm(eps=eps):
            groups = [x]
        case GroupNorm(eps=eps, groups=count):
            groups = np.split(x, count)
    normal = np.concatenate([(part - part.mean()) / sqrt(part.var() + eps) for part in groups])
    channels = range(branch * len(x), (branch + 1) * len(x))
    return normal * weights["weight"][channels] + weights["bias"][channels]


# Attention


def relative_bias(config: ViTConfig, table: Array, branch: int, class_tokens: int) -> PairBias:
    """One number for each offset of rows and columns, three more for pairs with a class token (BeiT)."""
    h, w = config.grid
    offsets = {}
    for row in range(1 - h, h):
        for column in range(1 - w, w):
            offsets[row, column] = len(offsets)
    from_class, to_class, among_class = (len(offsets) + extra for extra in range(3))

    def bias(head: int, query: int, key: int) -> float:
        column = branch * config.heads + head
        if query < class_tokens or key < class_tokens:
            if not config.class_position:
                return 0.0
            entry = to_class if query >= class_tokens else from_class if key >= class_tokens else among_class
            return table[entry, column]
        (i, j), (k, n) = divmod(query - class_tokens, w), divmod(key - class_tokens, w)
        return table[offsets[i - k, j - n], column]

    return bias


def no_bias(head: int, query: int, key: int) -> float:
    """Attention logits as they are."""
    return 0.0


def attention(heads: int, queries: Tokens, keys: Tokens, values: Tokens, bias: PairBias = no_bias) -> Tokens:
    """Softmax(Q K / sqrt(head width)) V for each head, concatenated (TL-v1, eq. 1 and 2)."""
    answers = []
    for query, q in enumerate(queries):
        parts = []
        for head in range(heads):
            here = channels_of(head, heads, q)
            logits = [q[here] @ k[here] / sqrt(len(q[here])) + bias(head, query, key) for key, k in enumerate(keys)]
            parts.append(sum(weight * v[here] for weight, v in zip(softmax(logits), values, strict=True)))
        answers.append(np.concatenate(parts))
    return answers


def talking_heads(weights: Weights, heads: int, branch: int, queries: Tokens, keys: Tokens, values: Tokens) -> Tokens:
    """Attention with the logits, then the weights, of all heads mixed linearly (CaiT, section 4.3)."""
    rows = range(branch * heads, (branch + 1) * heads)
    before, before_bias = weights["before"][rows], weights["before_bias"][rows]
    after, after_bias = weights["after"][rows], weights["after_bias"][rows]
    answers = []
    for q in queries:
        logits = np.zeros((heads, len(keys)))
        for head in range(heads):
            here = channels_of(head, heads, q)
            logits[head] = [q[here] @ k[here] / sqrt(len(q[here])) for k in keys]
        mixed = [sum(before[g, h] * logits[h] for h in range(heads)) + before_bias[g] for g in range(heads)]
        shares = [np.array(softmax(list(row))) for row in mixed]
        shares = [sum(after[g, h] * shares[h] for h in range(heads)) + after_bias[g] for g in range(heads)]
        parts = [
            sum(share * v[channels_of(head, heads, v)] for share, v in zip(shares[head], values, strict=True))
            for head in range(heads)
        ]
        answers.append(np.concatenate(parts))
    return answers


def channels_of(head: int, heads: int, x: Array) -> slice:
    """The channels of one head."""
    size = len(x) // heads
    return slice(head * size, (head + 1) * size)


# Residual rules: what is added to x


def gained(rule: Residual, weights: Weights, branch: int, answer: Array) -> Array:
    """The branch's answer as its residual rule weighs it."""
    match rule:
        case Plain():
            return answer
        case Scaled(divide_by=divide_by):
            return (1 / divide_by) * answer
        case LayerScale():
            return layer_scale(weights["gain.weight"], branch, answer)
        case ScalarGain() | Fixup() | TFixup():
            return scalar_gain(weights["gain.weight"], branch, answer)


def layer_scale(gain: Array, branch: int, answer: Array) -> Array:
    """diag(lambda) f(x) (CaiT, eq. 4)."""
    d = len(answer)
    return np.diag(gain[branch * d : (branch + 1) * d]) @ answer


def scalar_gain(gain: Array, branch: int, answer: Array) -> Array:
    """alpha f(x) (CaiT, eq. 3)."""
    return gain[branch] * answer


# Blocks


def block(config: ViTConfig, weights: Weights, tokens: Tokens, class_tokens: int) -> Tokens:
    """Attention, then the MLP."""

    def attend(branch: int, projected: Tokens) -> Tokens:
        q, k, v = zip(*(np.split(x, 3) for x in projected), strict=True)
        operation = weights.under("attention.operation")
        if config.attention == "talking_heads":
            return talking_heads(operation, config.heads, branch, list(q), list(k), list(v))
        relative = config.positions == "relative"
        bias = relative_bias(config, operation["table"], branch, class_tokens) if relative else no_bias
        return attention(config.heads, list(q), list(k), list(v), bias)

    def activate(branch: int, projected: Tokens) -> Tokens:
        return activated(config, weights.under("mlp"), projected)

    tokens = parallel(config, weights.under("attention"), 3, attend, tokens)
    return parallel(config, weights.under("mlp"), 1, activate, tokens)


def activated(config: ViTConfig, weights: Weights, projected: Tokens) -> Tokens:
    """GELU, after Fixup's scalar bias."""
    bias = weights["operation.shift"][0] if isinstance(config.residual, Fixup) else 0.0
    return [gelu(x + bias) for x in projected]


def parallel(
    config: ViTConfig, weights: Weights, parts: int, operation: Callable[[int, Tokens], Tokens], tokens: Tokens
) -> Tokens:
    """x + f_1(norm_1 x) + f_2(norm_2 x) + ... (3T, eq. 2), or norm(x + f(x)) where the norm comes after."""
    pre = config.norm_position == "pre"
    total = tokens
    for branch in range(config.branches):
        seen = [norm(config.norm, weights.under("norm"), x, branch) if pre else x for x in tokens]
        answers = residual_branch(config, weights, parts, branch, operation, seen)
        total = [x + answer for x, answer in zip(total, answers, strict=True)]
    return total if pre else [norm(config.norm, weights.under("norm"), x) for x in total]


def residual_branch(
    config: ViTConfig,
    weights: Weights,
    parts: int,
    branch: int,
    operation: Callable[[int, Tokens], Tokens],
    tokens: Tokens,
) -> Tokens:
    """Projection, operation, projection and gain of one branch, whose weights are cut from the wide ones."""
    weight, bias, branches = weights["input.weight"], weights.find("input.bias"), config.branches
    inner, d = len(weight) // (parts * branches), config.width
    rows = [(part * branches + branch) * inner + channel for part in range(parts) for channel in range(inner)]
    columns = range(branch * inner, (branch + 1) * inner)
    first, second = weights["shifts"] if isinstance(config.residual, Fixup) else (0.0, 0.0)
    projected = [weight[rows] @ (x + first) + (0.0 if bias is None else bias[rows]) for x in tokens]
    output, output_bias = weights["output.weight"][:, columns], weights["output_bias"][branch * d : (branch + 1) * d]
    answers = [output @ (hidden + second) + output_bias for hidden in operation(branch, projected)]
    return [gained(config.residual, weights, branch, answer) for answer in answers]


def class_block(config: ViTConfig, weights: Weights, class_tokens: Tokens, tokens: Tokens) -> Tokens:
    """Class attention (CaiT, eq. 5 to 9; keys without class tokens: Appendix B), then the MLP, one branch each."""
    assert config.class_attention is not None
    rule = config.class_attention.residual or config.residual
    read, mlp = weights.under("attention"), weights.under("mlp")
    normal = [norm(config.norm, read.under("norm"), x) for x in class_tokens + tokens]
    z = normal if config.class_attention.class_in_keys else normal[len(class_tokens) :]
    queries = [linear(read.under("query"), x) for x in normal[: len(class_tokens)]]
    keys, values = zip(*(np.split(linear(read.under("key_value"), x), 2) for x in z), strict=True)
    answers = [linear(read.under("output"), x) for x in attention(config.heads, queries, list(keys), list(values))]
    class_tokens = [x + gained(rule, read, 0, y) for x, y in zip(class_tokens, answers, strict=True)]
    hidden = [gelu(linear(mlp.under("input"), norm(config.norm, mlp.under("norm"), x))) for x in class_tokens]
    answers = [mlp["output.weight"] @ x + mlp["output_bias"] for x in hidden]
    return [x + gained(rule, mlp, 0, y) for x, y in zip(class_tokens, answers, strict=True)]
