"""A classifier's answer for every cell: its own head on one cell at a time, or the token head it was trained with."""

from typing import Any

import torch
from torch import Tensor, nn

from alltokens.errors import UserError
from alltokens.labels.sparse_loss import wide
from alltokens.models.timm_model import Layout, TimmClassifier, TimmConfig, layout_of, network_of, timm_arguments
from alltokens.models.vit import VisionTransformer
from alltokens.shapes import Float

PROBE = 448
"""Pixels by which an image grows to find a stride: 1, 2, 4 to 64 and these times 7 divide it."""


class DenseTimm(nn.Module):
    """timm's classifier; a cell goes through its head as if the whole map were like it.

    After average pooling a linear head commutes with the mean, so the mean of the map is then the classifier's answer.
    Applying such a head as one product instead was no faster (EfficientNet-Lite0 at 576 pixels, batch 8: 78 against
    74 ms after 3.1 s of features on one core).
    """

    def __init__(self, classifier: TimmClassifier) -> None:
        super().__init__()
        self.layout = classifier.layout
        self.model = classifier.model
        self.token_head = classifier.token_head

    def forward(self, images: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b k h w"]:
        model: Any = self.model
        features = model.forward_features(images)
        with at_full_precision(images.device):
            tokens = self.layout.tokens(features.to(wide(features)))
            if self.token_head is not None:
                logits = self.token_head(tokens)
            else:
                one_each = tokens.flatten(0, 1)[:, None]
                logits = model.forward_head(as_features(self.layout, one_each, (1, 1))).unflatten(0, tokens.shape[:2])
        return logits.transpose(1, 2).unflatten(2, grid_of(self.layout, features))


class DenseViT(nn.Module):
    """One of our models; its token head answers for every cell."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b k h w"]:
        encoded = self.model.encode(self.model.embed(images))
        with at_full_precision(images.device):
            logits = self.model.classify(encoded.to(wide(encoded))).token_logits
        assert logits is not None
        return logits.transpose(1, 2).unflatten(2, self.model.config.grid)


def at_full_precision(device: torch.device) -> torch.autocast:
    """For heads: logits rounded to bf16 would be further from the truth than the store's own rounding takes them."""
    return torch.autocast(device.type, enabled=False)


def grid_of(layout: Layout, features: Float[Tensor, "b ..."]) -> tuple[int, int]:
    """Rows and columns of these features; a map may have others than the layout was found with."""
    match layout.axes:
        case "NCHW":
            return features.shape[2], features.shape[3]
        case "NHWC":
            return features.shape[1], features.shape[2]
        case "NLC":
            return layout.grid


def as_features(layout: Layout, tokens: Float[Tensor, "b n d"], grid: tuple[int, int]) -> Float[Tensor, "b ..."]:
    """Tokens as a model's head takes them; class tokens and the like are the mean of the others."""
    match layout.axes:
        case "NCHW":
            return tokens.transpose(1, 2).unflatten(2, grid)
        case "NHWC":
            return tokens.unflatten(1, grid)
        case "NLC":
            return torch.cat((tokens.mean(1, keepdim=True).expand(-1, layout.prefix, -1), tokens), 1)


@torch.no_grad()
def require_placeless_head(model: nn.Module, layout: Layout, name: str) -> None:
    """Refuse a head whose answer depends on where in the map a cell lies: it has none for a cell alone."""
    head: Any = model
    cells = layout.grid[0] * layout.grid[1]
    tokens = torch.randn(1, cells, layout.width, generator=torch.Generator().manual_seed(0))
    answers = [head.forward_head(as_features(layout, x, layout.grid)) for x in (tokens, tokens.flip(1))]
    # Another order of the same sum differs in the last digits.
    if (answers[0] - answers[1]).abs().max() > 1e-3 * answers[0].abs().max():
        raise UserError(
            f"'{name}' cannot annotate: its head reads the whole map of features, each cell in its place, "
            "so it has no answer for one cell; a network that pools before its head would be right"
        )


@torch.no_grad()
def free_stride(config: TimmConfig) -> int | None:
    """Pixels between cells where a network makes a map of any image, also of a rectangle; otherwise None."""
    with torch.device("meta"):
        model = network_of(config.name, timm_arguments(config)).eval()
    size = config.image_size
    own, larger = grid_at(model, size), grid_at(model, (size[0] + PROBE, size[1] + PROBE))
    if own is None or larger is None or larger[0] <= own[0] or PROBE % (larger[0] - own[0]):
        return None
    stride = PROBE // (larger[0] - own[0])
    # Windows want whole windows: MaxViT takes 448 pixels more, but not a cell more.
    by_cells = grid_at(model, (size[0] + stride, size[1] + 3 * stride)) == (own[0] + 1, own[1] + 3)
    # Without padding the cells of a map (InceptionV4's) do not reach the image's border.
    covered = own[0] in (size[0] // stride, -(-size[0] // stride))
    return stride if by_cells and covered else None


def grid_at(model: Any, size: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns of the map that a model on the meta device makes of an image of this size, if it makes one."""
    try:
        features = model.forward_features(torch.empty(1, 3, *size, device="meta"))
    except Exception:  # timm answers a size that a model cannot take with whatever breaks first
        return None
    layout = layout_of(model, features, None)
    return None if layout is None else layout.grid
