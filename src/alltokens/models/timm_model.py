"""Any classifier of timm's, with a token head on every cell of its last feature map (TL, section 4.2)."""

from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

import timm
import torch
from timm.models import PretrainedCfg, get_pretrained_cfg
from torch import Tensor, nn

from alltokens.errors import UserError, by, did_you_mean, require
from alltokens.models.config import require_finite, require_positive
from alltokens.models.initialize import initialize_own
from alltokens.models.prediction import Prediction
from alltokens.shapes import Float


@dataclass(frozen=True, kw_only=True)
class TimmConfig:
    """A classifier of timm's and the token head beside it."""

    name: str
    """timm's own name, without the `timm/` in front."""
    classes: int = 1000
    """Classes of every head."""
    image_size: tuple[int, int]
    """Height and width in pixels."""
    channels: int = 3
    """Channels of the image."""
    drop_path: float = 0.0
    """Chance to drop a residual branch for one image; 0 leaves the rate to timm, which has its own for some models."""
    output_stride: int | None = None
    """Pixels between the cells of a CNN's last map, which is dilated to have them; None is its own, mostly 32."""
    token_head: bool = True
    """Whether every token has its own prediction; built only when it is trained."""
    token_weight: float = 0.0
    """Evaluation adds this times the maximum over tokens to the image logits."""

    def __post_init__(self) -> None:
        drop_path, token_weight = self.drop_path, self.token_weight
        published(self.name)
        require_positive(self, "classes", "image_size", "channels")
        require_finite(self)
        require(0.0 <= drop_path < 1.0, f"drop_path must be at least 0 and below 1; got drop_path={drop_path}")
        require(token_weight >= 0, f"token_weight must be at least 0; got token_weight={token_weight}")
        require(
            token_weight == 0.0 or self.token_head,
            f"token_weight needs a token head; got token_weight={token_weight}, token_head=False",
        )


def timm_config(name: str) -> TimmConfig:
    """The named model at the image size and with the classes of timm's weights for it."""
    known = published(name)
    channels, height, width = known.input_size
    # Weights without a classifier, such as DINOv2's, count no classes.
    classes = known.num_classes or TimmConfig.classes
    return TimmConfig(name=name, classes=classes, image_size=(height, width), channels=channels)


def published(name: str) -> PretrainedCfg:
    """What timm publishes of a model, by its name with or without the tag of some weights."""
    names = {*timm.list_models(name_matches_cfg=True), *timm.list_models(include_tags=True)}
    if name not in names:
        raise UserError(f"unknown timm model '{name}'{did_you_mean(name, sorted(names))}")
    known = get_pretrained_cfg(name)
    assert known is not None
    return known


@dataclass(frozen=True)
class Layout:
    """Where the features of a model keep a grid of tokens."""

    axes: Literal["NCHW", "NHWC", "NLC"]
    grid: tuple[int, int]
    width: int
    prefix: int = 0
    """Class, distillation and register tokens, which stand before the grid's."""

    def tokens(self, features: Float[Tensor, "b ..."]) -> Float[Tensor, "b n d"]:
        """The grid's tokens row by row."""
        match self.axes:
            case "NCHW":
                return features.flatten(2).transpose(1, 2)
            case "NHWC":
                return features.flatten(1, 2)
            case "NLC":
                return features[:, self.prefix :]


class TimmClassifier(nn.Module):
    """timm's model, unchanged, and a linear layer on its tokens."""

    def __init__(self, config: TimmConfig) -> None:
        super().__init__()
        self.config = config
        arguments = timm_arguments(config)
        self.layout = find_layout(config, arguments)
        self.grid = self.layout.grid
        self.model = network_of(config.name, arguments)
        self.token_head = nn.Linear(self.layout.width, config.classes) if config.token_head else None
        if self.token_head is not None:
            initialize_own(self.token_head)

    def forward(self, images: Float[Tensor, "b c H W"]) -> Prediction:
        expected = (self.config.channels, *self.config.image_size)
        if tuple(images.shape[1:]) != expected:
            raise UserError(
                f"images must be {by(expected)} (channels x height x width) for this model; got {by(images.shape[1:])}"
            )
        model: Any = self.model
        features = model.forward_features(images)
        token_logits = None if self.token_head is None else self.token_head(self.layout.tokens(features))
        return Prediction(model.forward_head(features), token_logits)


def network_of(name: str, arguments: dict[str, Any]) -> nn.Module:
    """timm's model, on the meta device too; RegNets up to timm 1.0.29 reckon with tensors when they are built."""
    try:
        return timm.create_model(name, **arguments)
    except RuntimeError:
        if not torch.empty(0).is_meta:
            raise
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            return timm.create_model(name, **arguments).to("meta")


def timm_arguments(config: TimmConfig) -> dict[str, Any]:
    """What timm is told of a config; the image size only where the model's class takes one (CNNs do not)."""
    with torch.device("meta"):
        kind = type(network_of(config.name, {}))
    arguments: dict[str, Any] = {"num_classes": config.classes, "in_chans": config.channels}
    height, width = config.image_size
    if takes(kind, "img_size"):
        # Some classes know squares alone and want one number.
        arguments["img_size"] = height if height == width else (height, width)
    if config.drop_path > 0:
        require(
            takes(kind, "drop_path_rate"),
            f"timm model '{config.name}' takes no drop path rate; got drop_path={config.drop_path}, leave it at 0",
        )
        arguments["drop_path_rate"] = config.drop_path
    if config.output_stride is not None:
        require(
            takes(kind, "output_stride"),
            f"timm model '{config.name}' takes no output stride; got output_stride={config.output_stride}, "
            "leave it at None",
        )
        arguments["output_stride"] = config.output_stride
    return arguments


def takes(kind: type, argument: str) -> bool:
    """Whether a class, or a parent to which it hands its keywords on, is built with this argument."""
    return any(argument in signature(parent).parameters for parent in kind.__mro__)


@torch.no_grad()
def find_layout(config: TimmConfig, arguments: dict[str, Any]) -> Layout:
    """The layout of the model's features, from one image on the meta device, where nothing is computed."""
    size, own = by((config.channels, *config.image_size)), by(published(config.name).input_size)
    try:
        with torch.device("meta"):
            model: Any = network_of(config.name, arguments).eval()
            images = torch.empty(1, config.channels, *config.image_size)
        features = model.forward_features(images)
        logits = model.forward_head(features)
        grid = grid_of_tokens(model, images)
    except Exception as error:
        # timm answers a size or channel count that a model cannot take with whatever breaks first.
        reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise UserError(
            f"timm model '{config.name}' failed on a trial image of {size}: {reason}"
            + (f"; its own size is {own}" if size != own else "")
        ) from error
    layout = layout_of(model, features, grid)
    if layout is None or looks(logits) != by((1, config.classes)):
        raise UserError(
            f"timm model '{config.name}' takes no token head: for one image of {size} its features are "
            f"{looks(features)} and its logits {looks(logits)}; a map, or tokens with a known grid, would be right"
        )
    return layout


def grid_of_tokens(model: Any, images: Float[Tensor, "1 c H W"]) -> tuple[int, int] | None:
    """Rows and columns into which timm itself puts a model's last tokens, where it says."""
    if hasattr(model, "forward_intermediates"):
        last_map = model.forward_intermediates(images, indices=1, intermediates_only=True)[-1]
        return last_map.shape[2], last_map.shape[3]
    return getattr(getattr(model, "patch_embed", None), "grid_size", None)


def layout_of(model: Any, features: Any, grid: tuple[int, int] | None) -> Layout | None:
    """The layout of features where it is beyond doubt."""
    width = getattr(model, "num_features", None)
    match tuple(getattr(features, "shape", ())):
        case (_, h, w, d) if d == width and getattr(model, "output_fmt", "NCHW") == "NHWC":
            return Layout("NHWC", (h, w), d)
        case (_, d, h, w) if d == width:
            return Layout("NCHW", (h, w), d)
        case (_, n, d) if d == width and grid is not None:
            prefix = n - grid[0] * grid[1]
            # Models that do not state their prefix have a class token at most, or a distillation token beside it.
            stated = getattr(model, "num_prefix_tokens", None)
            if prefix == stated or (stated is None and prefix in (0, 1, 2)):
                return Layout("NLC", grid, d, prefix)
    return None


def looks(answer: Any) -> str:
    """The shape of a tensor, or of each of several."""
    return by(answer.shape) if isinstance(answer, Tensor) else " and ".join(looks(part) for part in answer)
