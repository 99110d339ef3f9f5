"""Our models inside timm: every name of the zoo registered, under timm's contract instead of `Prediction`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, is_model, register_model
from torch import Tensor, nn

from alltokens.models.config import LocalStem, T2TStem, ViTConfig
from alltokens.models.resize import set_classes, set_image_size
from alltokens.models.vit import VisionTransformer
from alltokens.models.zoo import INTERPOLATION, MEAN, MODELS, STANDARD_DEVIATION, crop_ratio
from alltokens.plain import from_plain
from alltokens.shapes import Float


class TimmVisionTransformer(nn.Module):
    """A vision transformer that answers a tensor of logits, to which the tokens' are added in evaluation only."""

    def __init__(
        self,
        config: ViTConfig,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | tuple[int, int] | None = None,
        drop_rate: float = 0.0,
        drop_path_rate: float | None = None,
    ) -> None:
        super().__init__()
        size = (img_size, img_size) if isinstance(img_size, int) else img_size
        drop_path = config.drop_path if drop_path_rate is None else drop_path_rate
        config = replace(config, channels=in_chans, image_size=size or config.image_size)
        config = replace(config, classes=num_classes or 1, head_dropout=drop_rate, drop_path=drop_path)
        self.model = VisionTransformer(config)
        self.num_classes = num_classes
        self.num_features = self.head_hidden_size = self.embed_dim = config.width
        self.feature_info = [
            {"module": f"model.blocks.{place}", "num_chs": config.width, "reduction": config.stem.patch}
            for place in range(config.depth)
        ]
        if num_classes == 0:
            self.reset_classifier(0)
        self.register_load_state_dict_pre_hook(take_own_names)

    def forward(self, x: Float[Tensor, "b c H W"]) -> Float[Tensor, "b k"]:
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Float[Tensor, "b c H W"]) -> Float[Tensor, "b m d"]:
        """All tokens after the final norm, class tokens first."""
        return self.model.encode(self.model.embed(x))

    def forward_head(self, x: Float[Tensor, "b m d"], pre_logits: bool = False) -> Float[Tensor, "b k"]:
        """Logits, or what the heads would see."""
        first = self.model.config.class_tokens
        if pre_logits or self.num_classes == 0:
            return x[:, :first].mean(1) if first else x.mean(1)
        return self.model.classify(x).scores(0.0 if self.training else self.model.config.token_weight)

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
        """As every timm model has it."""
        return self.model.forward_intermediates(
            x, indices, return_prefix_tokens, norm, stop_early, output_fmt, intermediates_only
        )

    def get_classifier(self) -> nn.Module:
        """The image head."""
        return self.model.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Fresh heads for this many classes, or none."""
        assert global_pool is None, "the pooling of a model is part of its name"
        self.num_classes = num_classes
        if num_classes:
            set_classes(self.model, num_classes)
            return
        self.model.head = nn.Identity()
        self.model.token_head = self.model.distillation_head = None

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Take images of this size, positions resampled with antialiasing as timm does."""
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        set_image_size(self.model, height, width, antialias=True)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade time for memory in training."""
        self.model.checkpoint_gradients = enable

    def no_weight_decay(self) -> set[str]:
        """Tokens and positions."""
        return {name for name, _ in self.named_parameters() if name.endswith((".class_tokens", ".table", ".positions"))}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int | float]:
        """The layer of a parameter's name: stem 0, blocks from 1, class blocks after them, heads last."""
        depth = self.model.config.depth

        def layer(name: str) -> int | float:
            _, stage, *rest = name.split(".")
            if stage in ("stem", "positions", "class_tokens"):
                return 0
            if stage == "blocks":
                return 1 + int(rest[0])
            if stage == "class_blocks":
                return 1 + depth + int(rest[0])
            return float("inf")

        return layer


def take_own_names(module: nn.Module, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
    """Let a file of ours, such as a run's best model, load as one of timm's does, whose names begin with `model.`."""
    if not any(name.startswith(f"{prefix}model.") for name in state):
        for name in [name for name in state if name.startswith(prefix)]:
            state[f"{prefix}model.{name.removeprefix(prefix)}"] = state.pop(name)


def first_convolution(config: ViTConfig) -> str | None:
    """The layer whose weights timm sums or repeats for other channels; a T2T stem has none."""
    match config.stem:
        case LocalStem():
            return "model.stem.subpatches"
        case T2TStem():
            return None
    return "model.stem.0"


def pretrained_cfg(name: str, config: ViTConfig) -> dict[str, Any]:
    """What timm wants to know of a model's input, first layer and classifier."""
    heads = ["model.head"] + ["model.distillation_head"] * config.distillation_token
    return {
        "url": "",
        "num_classes": config.classes,
        "input_size": (config.channels, *config.image_size),
        "fixed_input_size": True,
        "crop_pct": crop_ratio(name),
        "interpolation": INTERPOLATION,
        "mean": MEAN,
        "std": STANDARD_DEVIATION,
        "first_conv": first_convolution(config),
        "classifier": heads[0] if len(heads) == 1 else tuple(heads),
        "license": "apache-2.0",
    }


def timm_name(name: str) -> str:
    """Our name, or one of its own where timm already has a model called so (cait_s24_384)."""
    return f"alltokens_{name}" if is_model(name) else name


def entry_point(name: str, config: ViTConfig) -> Callable[..., nn.Module]:
    """The function timm calls to build the model."""

    def build(pretrained: bool = False, **timm_arguments: Any) -> nn.Module:
        # timm itself splits these between the model and its own bookkeeping.
        features = {"out_indices": timm_arguments.pop("out_indices", 3), "feature_cls": "getter"}
        return build_model_with_cfg(
            TimmVisionTransformer, name, pretrained, feature_cfg=features, config=config, **timm_arguments
        )

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"The model {name} of alltokens."
    return build


def alltokens_vit(config: dict[str, Any], pretrained: bool = False, **timm_arguments: Any) -> nn.Module:
    """Any architecture from its config in plain values: what an exported folder names in its config.json."""
    ours = from_plain(ViTConfig, config)
    sizes = {"num_classes": ours.classes, "in_chans": ours.channels, "img_size": ours.image_size}
    return entry_point(ANY_VIT, ours)(pretrained, **(sizes | timm_arguments))


ANY_VIT = alltokens_vit.__name__
NAMES = {timm_name(name): name for name in MODELS}
default_cfgs = generate_default_cfgs({ours: pretrained_cfg(name, MODELS[name]) for ours, name in NAMES.items()})
for ours, name in NAMES.items():
    register_model(entry_point(ours, MODELS[name]))
register_model(alltokens_vit)
