"""Token labeling as a task of timm's, so that training scripts built on `timm.task` can use it."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from timm.task import TrainingTask
from timm.utils import unwrap_model
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from alltokens.errors import UserError, require
from alltokens.labels.align import image_targets, token_targets
from alltokens.labels.score_map import ScoreMaps
from alltokens.labels.sparse_loss import token_cross_entropy
from alltokens.mix.token_mix import TokenMix
from alltokens.models.prediction import Prediction
from alltokens.models.timm_contract import TimmVisionTransformer
from alltokens.models.vit import VisionTransformer
from alltokens.objectives.classify import whole_view
from alltokens.objectives.losses import image_cross_entropy
from alltokens.objectives.token_label import TokenLabelConfig, require_trainable
from alltokens.shapes import Float

logger = logging.getLogger(__name__)


class MixedModel(nn.Module):
    """A model whose tokens are mixed on their way: one forward, so that timm can compile, average and distribute it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "b c H W"], mix: TokenMix) -> Prediction:
        transformer = transformer_of(self.model)
        return transformer.classify(transformer.encode(mix.swap(transformer.embed(images))))

    def no_weight_decay(self) -> set[str]:
        """The names that the model gives to timm's optimizers, as they are here."""
        return {f"model.{name}" for name in getattr(self.model, "no_weight_decay", set)()}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int | float]:
        """The model's layers, for timm's layer decay."""
        if not isinstance(self.model, TimmVisionTransformer):
            raise UserError(f"layer decay needs a model from timm.create_model; got a {type(self.model).__name__}")
        layer = self.model.group_matcher(coarse)
        return lambda name: layer(name.removeprefix("model."))


class TokenLabelTask(TrainingTask):
    """Cross-entropy of mixed images with their targets, plus beta times that of every token with its own.

    The target is (class labels [b], `ScoreMaps`, views [b, 2, 3]); a mix is drawn from `generator` in every call, in
    training and in evaluation. timm's `validate` and checkpoints see the model alone.
    """

    def __init__(
        self,
        model: nn.Module,
        generator: torch.Generator,
        config: TokenLabelConfig | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(device=device, dtype=dtype, verbose=verbose)
        require_trainable(transformer_of(model))
        self.trainable_module: nn.Module = MixedModel(model)
        self.generator = generator
        self.config = config or TokenLabelConfig()
        require_usual(self.config)
        if verbose:
            logger.info(f"TokenLabelTask: {self.config}")

    def forward(self, input: Float[Tensor, "b c H W"], target: Any) -> dict[str, Tensor]:
        """`loss`, its parts `image_loss` and `token_loss`, and as `output` the logits of the mixed images."""
        labels, score_maps, views = parts_of(target, input.device)
        model, config = self.transformer.config, self.config
        mix = TokenMix.draw(len(input), model.grid, self.generator).to(input.device)
        prediction = self.trainable_module(input, mix)

        whole = whole_view(score_maps, views, model.classes, config.image_target, config.rule)
        image = image_targets(labels, model.classes, config.image_target, whole, config.smoothing)
        tokens = token_targets(score_maps, views, model.grid, model.classes, config.rule, config.smoothing)

        image_loss = image_cross_entropy(prediction.image_logits, mix.blend(image))
        token_loss = token_cross_entropy(prediction.token_logits, tokens.each(mix.swap_targets))
        loss = image_loss + config.beta * token_loss
        return {"loss": loss, "output": prediction.image_logits, "image_loss": image_loss, "token_loss": token_loss}

    @property
    def transformer(self) -> VisionTransformer:
        """The model without what timm and torch put around it."""
        return transformer_of(unwrap_model(self.trainable_module).model)

    def compile(  # type: ignore[override]  # timm's arguments and answer, which are not torch's
        self, backend: str = "inductor", mode: str | None = None, **compile_kwargs: Any
    ) -> nn.Module:
        """Compile what is trained, and the model that is evaluated, each in place."""
        model = self.get_eval_model()
        assert model is not None
        for module in (self.trainable_module, model):
            module.compile(backend=backend, mode=mode, **compile_kwargs)
        return model

    def prepare_distributed(self, device_ids: list[Any] | None = None, **ddp_kwargs: Any) -> "TokenLabelTask":
        """Average gradients over processes."""
        self.trainable_module = DistributedDataParallel(self.trainable_module, device_ids=device_ids, **ddp_kwargs)
        return self

    def get_eval_model(self, module: nn.Module | None = None, ema: bool = False) -> nn.Module | None:
        """The model as it was handed in, without mixing."""
        found = super().get_eval_model(module=module, ema=ema)
        inner = unwrap_model(found)
        return inner.model if isinstance(inner, MixedModel) else found

    def get_clip_parameters(self, exclude_head: bool = False) -> list[nn.Parameter]:
        """All parameters, or those of no head."""
        transformer = self.transformer
        heads = [getattr(transformer, name) for name in transformer.config.prediction_heads] if exclude_head else []
        excluded = {parameter for head in heads for parameter in head.parameters()}
        return [parameter for parameter in transformer.parameters() if parameter not in excluded]


def transformer_of(model: nn.Module) -> VisionTransformer:
    """The transformer itself, also of a model that timm created."""
    inner = model.model if isinstance(model, TimmVisionTransformer) else model
    if not isinstance(inner, VisionTransformer):
        raise UserError(
            "MixToken needs a model that can embed, encode and classify: a VisionTransformer of alltokens, built "
            f"directly or by timm.create_model; got a {type(model).__name__}"
        )
    return inner


def require_usual(config: TokenLabelConfig) -> None:
    """Raise where a field says what this task leaves to timm's loader, or does in one way alone."""
    usual = TokenLabelConfig()
    for name in ("participation", "mix", "finish", "teacher"):
        value = getattr(config, name)
        require(
            value == getattr(usual, name),
            f"{name} has no effect on the task for timm; got {value}, leave it out or train with TokenLabeling",
        )


def parts_of(target: Any, device: torch.device) -> tuple[Tensor, ScoreMaps, Tensor]:
    """Class labels, score maps and views where the images are; scripts cannot move a tuple there themselves."""
    match target:
        case (Tensor() as labels, ScoreMaps() as score_maps, Tensor() as views):
            return labels.to(device), score_maps.to(device), views.to(device)
    got = (
        f"({', '.join(type(part).__name__ for part in target)})" if isinstance(target, tuple) else type(target).__name__
    )
    raise UserError(f"the target must be (class labels, ScoreMaps, views [b, 2, 3]); got {got}")
