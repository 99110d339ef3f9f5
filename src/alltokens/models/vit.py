"""One vision transformer for all the papers: embed, encode, classify."""

from collections.abc import Collection
from typing import Any

import torch
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from alltokens.errors import UserError, by
from alltokens.models.block import Block, Branches
from alltokens.models.class_attention import ClassBlock
from alltokens.models.config import NoNorm, ViTConfig
from alltokens.models.initialize import initialize
from alltokens.models.norms import TokenNorm
from alltokens.models.positions import Positions, relative_pairs
from alltokens.models.prediction import Prediction
from alltokens.models.stems import build_stem
from alltokens.shapes import Float, Int


class VisionTransformer(nn.Module):
    """A vision transformer with the axes of its config."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpoint_gradients = False
        self.stem = build_stem(config)
        self.positions = Positions(config)
        tokens = config.class_tokens
        self.class_tokens = nn.Parameter(torch.empty(tokens, config.width)) if tokens else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, rate) for rate in drop_path_rates(config))
        stage = config.class_attention
        self.class_blocks = nn.ModuleList(ClassBlock(config, stage) for _ in range(stage.depth)) if stage else None
        # With post norm the last block has normalised already.
        self.norm = TokenNorm(config.norm if config.norm_position == "pre" else NoNorm(), config.width)
        self.head_dropout = nn.Dropout(config.head_dropout)
        self.head: nn.Module = nn.Linear(config.width, config.classes)
        self.token_head = nn.Linear(config.width, config.classes) if config.token_head else None
        self.distillation_head = nn.Linear(config.width, config.classes) if config.distillation_token else None
        initialize(self, config)

    def forward(self, images: Float[Tensor, "b c H W"]) -> Prediction:
        return self.classify(self.encode(self.embed(images)))

    def embed(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b h w d"]:
        """Pixels to a grid of tokens, still without positions, so that grids can be mixed."""
        expected = (self.config.channels, *self.config.image_size)
        if tuple(images.shape[1:]) != expected:
            raise UserError(
                f"images must be {by(expected)} (channels x height x width) for this model; "
                f"got {by(images.shape[1:])}; set_image_size and set_channels change the model"
            )
        return self.stem(images)

    def encode(self, grid: Float[Tensor, "b h w d"]) -> Float[Tensor, "b m d"]:
        """Class tokens, if any, then the grid's tokens, after the trunk, class attention and the final norm."""
        x, _ = self.trunk(grid, self.config.depth)
        return self.finish(x)

    def classify(self, x: Float[Tensor, "b m d"]) -> Prediction:
        """The heads' answers on encoded tokens."""
        first, drop = self.config.class_tokens, self.head_dropout
        return Prediction(
            self.head(drop(x[:, 0] if first else x.mean(1))),
            None if self.token_head is None else self.token_head(drop(x[:, first:])),
            None if self.distillation_head is None else self.distillation_head(drop(x[:, 1])),
        )

    def trunk(
        self, grid: Float[Tensor, "b h w d"], depth: int, take: Collection[int] = ()
    ) -> tuple[Float[Tensor, "b m d"], list[Tensor]]:
        """Tokens after the first `depth` blocks, and after each of the blocks to take."""
        x = self.positions.of_tokens(grid.flatten(1, 2))
        pairs = self.pairs(grid, 0)
        taken = []
        for place in range(depth):
            if place == self.config.class_token_at:
                x = torch.cat((self.class_start(x), x), 1)
                pairs = self.pairs(grid, self.config.class_tokens)
            x = self.dropout(x) if place == 0 else x
            block = self.blocks[place]
            if self.checkpoint_gradients and torch.is_grad_enabled():
                x = checkpoint(block, x, pairs, use_reentrant=False)
            else:
                x = block(x, pairs)
            if place in take:
                taken.append(x)
        return x, taken

    def finish(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b m d"]:
        """Class attention, where there is such a stage, and the final norm."""
        if self.class_blocks is not None:
            class_tokens = self.class_start(x)
            for block in self.class_blocks:
                class_tokens = block(class_tokens, x)
            x = torch.cat((class_tokens, x), 1)
        return self.norm(x)

    def class_start(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b t d"]:
        """The class tokens as they join a batch."""
        assert self.class_tokens is not None
        return self.positions.of_class(self.class_tokens.to(x.dtype).expand(x.shape[0], -1, -1))

    def pairs(self, grid: Float[Tensor, "b h w d"], class_tokens: int) -> Int[Tensor, "m m"] | None:
        """Which row of the relative position tables each pair of tokens reads."""
        if self.config.positions != "relative":
            return None
        return relative_pairs((grid.shape[1], grid.shape[2]), class_tokens, grid.device)

    def forward_intermediates(
        self,
        x: Float[Tensor, "b c H W"],
        indices: int | list[int] | tuple[int, ...] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Tokens after chosen blocks, with timm's arguments and answers."""
        if output_fmt not in ("NCHW", "NLC"):
            raise UserError(f"output_fmt must be NCHW or NLC; got {output_fmt!r}")
        take, last = feature_take_indices(self.config.depth, list(indices) if isinstance(indices, tuple) else indices)
        grid = self.embed(x)
        h, w = grid.shape[1:3]
        encoded, taken = self.trunk(grid, last + 1 if stop_early else self.config.depth, take)
        intermediates = []
        for tokens in taken:
            tokens = self.norm(tokens) if norm else tokens
            prefix, tokens = tokens[:, : -h * w], tokens[:, -h * w :]
            if output_fmt == "NCHW":
                tokens = tokens.transpose(1, 2).unflatten(2, (h, w)).contiguous()
            intermediates.append((tokens, prefix) if return_prefix_tokens else tokens)
        if intermediates_only:
            return intermediates
        return self.finish(encoded), intermediates


def drop_path_rates(config: ViTConfig) -> list[float]:
    """The chance to drop each block's branches."""
    if config.drop_path_rule == "constant":
        return [config.drop_path] * config.depth
    return [config.drop_path * place / max(1, config.depth - 1) for place in range(config.depth)]


def run_branches_one_by_one(model: nn.Module, one_by_one: bool = True) -> None:
    """Run parallel branches in turn rather than as one wide product; the answer is the same."""
    for module in model.modules():
        if isinstance(module, Branches):
            module.one_by_one = one_by_one
