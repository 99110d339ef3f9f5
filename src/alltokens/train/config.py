"""A whole run as one checked value: what is trained, on what, and how."""

from dataclasses import dataclass, field

from alltokens.augment.pipeline import AugmentConfig
from alltokens.data.samples import EvaluationConfig
from alltokens.errors import require
from alltokens.labels.published import Alignment
from alltokens.models.config import ViTConfig
from alltokens.models.timm_model import TimmConfig
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.distill import DistillConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.train.average import AverageConfig
from alltokens.train.optimizer import OptimizerConfig
from alltokens.train.precision import Kind
from alltokens.train.schedule import ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where images and labels lie."""

    root: str
    """Training images: whatever 'alltokens annotate' takes."""
    split: str | None = None
    """Which split of it, for data sets that have several."""
    validation: str | None = None
    """Held-out images; without them nothing is evaluated."""
    validation_split: str | None = None
    """Which split of those."""
    held_out: float | None = None
    """Share of the training images that is held out instead, the same of every class, and trained on by nobody."""
    labels: str | None = None
    """The label store of the training images."""
    alignment: Alignment = "exact"
    """Where labels are read: where the image is seen or, for published figures, with rows and columns exchanged."""

    def __post_init__(self) -> None:
        require(
            self.held_out is None or self.validation is None,
            "validation images are held out of the training images or lie elsewhere; "
            f"got data.held_out={self.held_out} and data.validation={self.validation}, leave out one",
        )
        require(
            self.held_out is None or 0 < self.held_out < 1,
            f"data.held_out must be between 0 and 1; got data.held_out={self.held_out}",
        )
        require(
            self.alignment == "exact" or self.labels is not None,
            f"data.alignment is about labels; got data.alignment={self.alignment} without data.labels",
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides what comes of a run."""

    model: ViTConfig | TimmConfig
    data: DataConfig
    initial: str | None = None
    """Weights to begin with: a file in any layout we read, or pip/NAME; none: they are drawn."""
    objective: TokenLabelConfig | ClassifyConfig | DistillConfig = field(default_factory=TokenLabelConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    average: AverageConfig | None = field(default_factory=AverageConfig)
    """The moving average of the weights, which is then what is evaluated and kept; none: the weights themselves."""
    seed: int = 0
    """Of the first weights, the order of the images and all that is random about them."""
    batch: int = 1024
    """Images of a step, in all processes and accumulated parts together."""
    repeats: int = 1
    """Times that an image comes, augmented anew each time, in the epochs in which it does; they are not longer."""
    accumulate: int = 1
    """Parts of a step that go through the model one after the other, where it does not fit as a whole."""
    precision: Kind = "bf16"
    """What the model computes in; bf16 and fp16 by autocast, its weights stay float32."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, f"seed must be at least 0 and below 2^63; got seed={self.seed}")
        require(self.batch >= 1, f"batch must be at least 1; got batch={self.batch}")
        require(self.repeats >= 1, f"repeats must be at least 1; got repeats={self.repeats}")
        require(self.accumulate >= 1, f"accumulate must be at least 1; got accumulate={self.accumulate}")
        require(
            self.batch % self.accumulate == 0,
            f"batch must be divisible by accumulate; got batch={self.batch}, accumulate={self.accumulate}",
        )
        match self.objective:
            case TokenLabelConfig(teacher=teacher):
                wants = teacher is None
            case ClassifyConfig(image_target=target):
                wants = target != "class_label"
            case DistillConfig():
                wants = False
        require(
            wants == (self.data.labels is not None),
            "data.labels is the label store of the objectives that train on one, and of no other; "
            f"got data.labels={self.data.labels} with {type(self.objective).__name__}",
        )
