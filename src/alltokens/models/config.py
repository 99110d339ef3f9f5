"""The architecture of a vision transformer as one checked value: every axis of the papers is a field."""

from dataclasses import dataclass, field, fields, is_dataclass
from math import isfinite, prod
from typing import Any, Literal

from alltokens.errors import require

StemNorm = Literal["batch", "layer", "none"]
Activation = Literal["relu", "gelu", "none"]


def require_positive(config: object, *names: str, of: str = "") -> None:
    """Raise unless each of these fields, or each number in it, is above zero."""
    for name in names:
        value = getattr(config, name)
        numbers = value if isinstance(value, tuple) else (value,)
        require(all(number > 0 for number in numbers), f"{of}{name} must be above 0; got {of}{name}={value}")


def require_finite(config: Any, of: str = "") -> None:
    """Raise unless every number of a config and of its parts is finite, as YAML and flags take inf and nan too."""
    for name in (entry.name for entry in fields(config)):
        value = getattr(config, name)
        if is_dataclass(value):
            require_finite(value, f"{of}{name}.")
        elif isinstance(value, float):
            require(isfinite(value), f"{of}{name} must be a finite number; got {of}{name}={value}")


@dataclass(frozen=True, kw_only=True)
class LinearStem:
    """One linear map of each patch (ViT); 3T Table 7 adds a norm and an activation after it."""

    patch: int = 16
    """Side of a patch in pixels."""
    norm: StemNorm = "none"
    """Norm after the projection."""
    activation: Activation = "none"
    """Activation after the norm."""

    def __post_init__(self) -> None:
        require_positive(self, "patch", of="stem.")


@dataclass(frozen=True, kw_only=True)
class ConvStem:
    """Convolutions, each but the last with norm and activation (TL-v1, Table 4)."""

    channels: int = 64
    """Channels of every convolution but the last."""
    kernels: tuple[int, ...] = (7, 3, 3, 8)
    """Kernel sizes in order; one that does not exceed its stride is not padded."""
    strides: tuple[int, ...] = (2, 1, 1, 8)
    """Strides in order; their product is the patch."""
    norm: StemNorm = "batch"
    """Norm after every convolution but the last."""
    activation: Activation = "relu"
    """Activation after every norm."""

    def __post_init__(self) -> None:
        require_positive(self, "channels", "kernels", "strides", of="stem.")
        sizes = f"kernels={self.kernels}, strides={self.strides}"
        require(
            1 < len(self.kernels) == len(self.strides),
            f"a conv stem needs as many kernels as strides, two at least (one is a linear stem); got {sizes}",
        )
        require(
            all(stride > 1 or kernel % 2 for kernel, stride in zip(self.kernels, self.strides, strict=True)),
            f"a convolution of stride 1 needs an odd kernel to keep its size; got {sizes}",
        )

    @property
    def patch(self) -> int:
        """Pixels between neighbouring tokens."""
        return prod(self.strides)


@dataclass(frozen=True, kw_only=True)
class HMLPStem:
    """Patches grown from 4 to 8 to 16 pixels by linear maps that never look outside the patch (3T, Figure 5)."""

    norm: StemNorm = "batch"
    """Norm after each of the three maps."""
    activation: Activation = "gelu"
    """Activation between the maps."""

    @property
    def patch(self) -> int:
        """Side of the final patch."""
        return 16


@dataclass(frozen=True, kw_only=True)
class LeViTStem:
    """Four 3x3 convolutions of stride 2 that double the channels up to the width (3T, Table 7)."""

    norm: StemNorm = "batch"
    """Norm after every convolution."""
    activation: Activation = "gelu"
    """Activation between the convolutions."""

    @property
    def patch(self) -> int:
        """Pixels between neighbouring tokens."""
        return 16


@dataclass(frozen=True, kw_only=True)
class LocalStem:
    """A small transformer over the sub-patches of each patch, then one linear map of the patch (3T, Table 7)."""

    patch: int = 16
    """Side of a patch in pixels."""
    subpatch: int = 4
    """Side of a sub-patch in pixels."""
    width: int = 128
    """Channels of a sub-patch token."""
    depth: int = 2
    """Blocks of the small transformer."""
    heads: int = 4
    """Its attention heads."""

    def __post_init__(self) -> None:
        require_positive(self, "patch", "subpatch", "width", "depth", "heads", of="stem.")
        require(
            self.patch % self.subpatch == 0,
            f"patch must be divisible by subpatch; got patch={self.patch}, subpatch={self.subpatch}",
        )
        require(
            self.width % self.heads == 0,
            f"the local stem's width must be divisible by its heads; got width={self.width}, heads={self.heads}",
        )


@dataclass(frozen=True, kw_only=True)
class T2TStem:
    """Overlapping windows become tokens, three times, with attention among all tokens in between (T2T-ViT)."""

    attention: Literal["performer", "transformer"] = "performer"
    """Linear in the tokens, or softmax attention (the `t` models)."""
    width: int = 64
    """Channels of the tokens in between."""
    features: int | None = None
    """Random features of the performer; None is 32."""

    def __post_init__(self) -> None:
        require_positive(self, "width", of="stem.")
        if self.features is not None:
            require_positive(self, "features", of="stem.")
            require(
                self.attention == "performer",
                f"stem.features has no effect with stem.attention={self.attention}; got stem.features={self.features}, "
                "set it to None",
            )

    @property
    def patch(self) -> int:
        """Pixels between neighbouring tokens."""
        return 16


Stem = LinearStem | ConvStem | HMLPStem | LeViTStem | LocalStem | T2TStem


@dataclass(frozen=True, kw_only=True)
class Plain:
    """x + f(x)."""


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """x + f(x) / divide_by (TL-v1, eq. 5)."""

    divide_by: float = 2.0
    """What each residual branch is divided by."""

    def __post_init__(self) -> None:
        require_positive(self, "divide_by", of="residual.")


@dataclass(frozen=True, kw_only=True)
class LayerScale:
    """x + diag(gain) f(x) (CaiT, eq. 4)."""

    initial: float = 1e-5
    """First value of every gain, or their mean when they are drawn."""
    draw: Literal["constant", "uniform"] = "constant"
    """All equal, or uniform between 0 and twice the initial value (CaiT, Appendix A)."""
    learned: bool = True
    """Frozen gains are CaiT's control experiment (Appendix A)."""

    def __post_init__(self) -> None:
        require(self.initial >= 0, f"residual.initial must be at least 0; got residual.initial={self.initial}")


@dataclass(frozen=True, kw_only=True)
class ScalarGain:
    """x + gain f(x) with one learned number a branch (CaiT, eq. 3): ReZero and SkipInit start it at 0."""

    initial: float = 0.0
    """First value of the gain."""


@dataclass(frozen=True, kw_only=True)
class Fixup:
    """A learned scalar that starts at 1, scalar biases and Fixup's initialisation (CaiT, Table 1)."""


@dataclass(frozen=True, kw_only=True)
class TFixup:
    """A learned scalar that starts at 1 and T-Fixup's initialisation (CaiT, Table 1)."""


Residual = Plain | Scaled | LayerScale | ScalarGain | Fixup | TFixup


@dataclass(frozen=True, kw_only=True)
class LayerNorm:
    """Normalises all channels of a token."""

    eps: float = 1e-6
    """Added to the variance; ViT, DeiT and CaiT use 1e-6, LV-ViT 1e-5."""


@dataclass(frozen=True, kw_only=True)
class GroupNorm:
    """Normalises groups of channels within a token (TL-v1, Table 9)."""

    groups: int = 1
    """Groups of channels."""
    eps: float = 1e-5
    """Added to the variance."""

    def __post_init__(self) -> None:
        require_positive(self, "groups", of="norm.")


@dataclass(frozen=True, kw_only=True)
class NoNorm:
    """Leaves tokens as they are, final norm included."""


Norm = LayerNorm | GroupNorm | NoNorm


@dataclass(frozen=True, kw_only=True)
class ClassAttention:
    """Blocks after the trunk in which only the class token is updated (CaiT, section 3)."""

    depth: int = 2
    """Class-attention blocks."""
    class_in_keys: bool = True
    """Whether the class token attends to itself (CaiT, Appendix B)."""
    residual: Residual | None = None
    """Residual rule of these blocks; None takes the trunk's."""

    def __post_init__(self) -> None:
        require_positive(self, "depth", of="class_attention.")


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Architecture of a vision transformer."""

    width: int
    """Channels of every token."""
    depth: int
    """Blocks in the trunk."""
    heads: int
    """Attention heads per branch."""
    head_width: int | None = None
    """Channels of a head; None divides the width among the heads."""
    mlp_ratio: float = 4.0
    """Hidden channels of the MLP over the width."""
    branches: int = 1
    """Parallel attention (then MLP) branches per block (3T, eq. 2)."""
    stem: Stem = field(default_factory=LinearStem)
    """How pixels become tokens."""
    positions: Literal["learned", "sinusoidal", "relative", "none"] = "learned"
    """What tells a token where it is: a learned or fixed vector, a bias on attention (BeiT), or nothing."""
    class_position: bool = True
    """Whether class (and distillation) tokens have a position too."""
    class_token_at: int | None = 0
    """Trunk block before which the class token joins: 0 input, depth after the trunk, None average pool."""
    class_attention: ClassAttention | None = None
    """The stage that reads the trunk into a class token which joins after it."""
    distillation_token: bool = False
    """A second class token with a head of its own, for a teacher's answers."""
    attention: Literal["dot_product", "talking_heads"] = "dot_product"
    """Attention of the trunk; talking heads mix the heads before and after the softmax."""
    qkv_bias: bool = True
    """Whether queries, keys and values have a bias."""
    residual: Residual = field(default_factory=Plain)
    """How a branch is added to its input."""
    norm: Norm = field(default_factory=LayerNorm)
    """Norm of every branch."""
    norm_position: Literal["pre", "post"] = "pre"
    """Before the branch, or after the sum."""
    drop_path: float = 0.0
    """Chance to drop a residual branch for one image."""
    drop_path_rule: Literal["linear", "constant"] = "linear"
    """Rising from 0 to drop_path over the trunk, or the same everywhere."""
    dropout: float = 0.0
    """Dropout after positions, attention and both layers of the MLP."""
    attention_dropout: float = 0.0
    """Dropout of attention weights."""
    head_dropout: float = 0.0
    """Dropout before the heads."""
    token_head: bool = False
    """Whether every token has its own prediction; built only when it is trained."""
    token_weight: float = 0.0
    """Evaluation adds this times the maximum over tokens to the image logits (LV-ViT: 0.5)."""
    image_size: tuple[int, int] = (224, 224)
    """Height and width in pixels."""
    channels: int = 3
    """Channels of the image."""
    classes: int = 1000
    """Classes of every head."""

    def __post_init__(self) -> None:
        require_finite(self)
        check_sizes(self)
        check_class_token(self)
        check_combinations(self)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""
        return self.image_size[0] // self.stem.patch, self.image_size[1] // self.stem.patch

    @property
    def attention_width(self) -> int:
        """Channels of one branch's queries."""
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def mlp_width(self) -> int:
        """Hidden channels of one branch's MLP."""
        return int(self.width * self.mlp_ratio)

    @property
    def prediction_heads(self) -> list[str]:
        """Names of the linear layers that predict classes."""
        built = {"head": True, "token_head": self.token_head, "distillation_head": self.distillation_token}
        return [name for name, has in built.items() if has]

    @property
    def class_residual(self) -> Residual:
        """Residual rule of the class-attention blocks."""
        own = self.class_attention.residual if self.class_attention else None
        return own or self.residual

    @property
    def class_tokens(self) -> int:
        """Class and distillation tokens together."""
        return 0 if self.class_token_at is None else 1 + self.distillation_token


def check_sizes(config: ViTConfig) -> None:
    """Counts are positive and divide one another where they must."""
    require_positive(config, "width", "depth", "heads", "branches", "mlp_ratio", "image_size", "channels", "classes")
    if config.head_width is not None:
        require_positive(config, "head_width")
    require(
        config.head_width is not None or config.width % config.heads == 0,
        f"width must be divisible by heads; got width={config.width}, heads={config.heads}",
    )
    patch, (height, width) = config.stem.patch, config.image_size
    require(
        height % patch == 0 and width % patch == 0,
        f"image_size must be a multiple of the patch; got {height} x {width} with patch {patch}",
    )
    parts = {HMLPStem: 4, LeViTStem: 8}.get(type(config.stem), 1)
    require(
        config.width % parts == 0,
        f"width must be divisible by {parts} for a {type(config.stem).__name__}; got width={config.width}",
    )
    if isinstance(config.norm, GroupNorm):
        require(
            config.width % config.norm.groups == 0,
            f"width must be divisible by norm.groups; got width={config.width}, groups={config.norm.groups}",
        )
    for name in ("drop_path", "dropout", "attention_dropout", "head_dropout"):
        value = getattr(config, name)
        require(0.0 <= value < 1.0, f"{name} must be at least 0 and below 1; got {name}={value}")


def check_class_token(config: ViTConfig) -> None:
    """The class token joins once, somewhere it can be read."""
    at, depth = config.class_token_at, config.depth
    require(
        at is None or 0 <= at <= depth,
        f"class_token_at must be None or between 0 and depth; got class_token_at={at}, depth={depth}",
    )
    if config.class_attention is not None:
        require(
            at == depth,
            f"class attention needs a class token that joins after the trunk; got class_token_at={at}, depth={depth}",
        )
        require(config.norm_position == "pre", "class attention is defined for norm_position=pre; got post")
        require(
            not isinstance(config.class_residual, Fixup),
            "class attention is not defined with Fixup; give class_attention.residual another rule",
        )
    else:
        require(
            at != depth,
            f"class_token_at={at} is after the trunk (depth={depth}), where only class attention can read it; "
            "give class_attention or a smaller class_token_at",
        )
    require(
        not config.distillation_token or at is not None,
        "a distillation token needs a class token beside it; got class_token_at=None",
    )
    joins_inside = at is not None and at < depth
    if config.class_position:
        allowed = joins_inside if config.positions == "relative" else at == 0
        require(
            config.positions != "none" and allowed,
            f"class_position has no effect with positions={config.positions} and class_token_at={at}; set it to False",
        )


def check_combinations(config: ViTConfig) -> None:
    """What the papers leave undefined is refused rather than guessed."""
    many = config.branches > 1
    require(
        not (many and config.norm_position == "post"),
        f"post norm is defined for one branch; got branches={config.branches}",
    )
    require(
        not (many and isinstance(config.residual, Fixup)),
        f"Fixup is defined for one branch; got branches={config.branches}",
    )
    require(
        not (config.norm_position == "post" and isinstance(config.norm, NoNorm)),
        "norm_position=post needs a norm; got NoNorm",
    )
    require(
        not (config.attention == "talking_heads" and config.positions == "relative"),
        "relative positions need attention=dot_product; got talking_heads",
    )
    require(config.token_weight >= 0, f"token_weight must be at least 0; got token_weight={config.token_weight}")
    require(
        config.token_weight == 0.0 or config.token_head,
        f"token_weight needs a token head; got token_weight={config.token_weight}, token_head=False",
    )
