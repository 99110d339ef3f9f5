"""Distillation: images are compared with their class labels and with what a teacher says of them (DeiT, section 4)."""

from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from alltokens.augment.finish import FinishConfig
from alltokens.data.batch import Batch
from alltokens.errors import require
from alltokens.labels.align import image_targets, require_smoothing
from alltokens.labels.sparse_loss import wide
from alltokens.models.prediction import Prediction
from alltokens.objectives.classify import evaluate, refuse_token_head, type_of
from alltokens.objectives.finishing import finish_by_seeds
from alltokens.objectives.losses import Losses, image_cross_entropy
from alltokens.objectives.mixing import MixConfig, as_model, draw_mix
from alltokens.objectives.teachers import Teacher, require_same_classes
from alltokens.shapes import Float

TEMPERATURE = 3.0
"""DeiT's for soft labels."""


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Who teaches, how its answer counts, and what happens to images before."""

    teacher: str
    """timm/NAME, pip/NAME or one of our names, or a weight file of ours; its classes are the model's."""
    teacher_weights: str | None = None
    """Its weight file; none: what timm publishes, where the name is timm's."""
    labels: Literal["hard", "soft"] = "hard"
    """Whether the class of the teacher's choice counts, or its softened probabilities."""
    temperature: float | None = None
    """By which logits are divided before probabilities are compared, where they are; None is DeiT's 3."""
    weight: float = 0.5
    """Of the teacher's part in the loss; the class label has the rest (DeiT: 0.5 for hard labels, 0.1 for soft)."""
    smoothing: float = 0.1
    """Mass of every class label that is spread evenly over all classes; the teacher's labels are left as they are."""
    mix: MixConfig = field(default_factory=lambda: MixConfig(kind="cutmix_or_mixup", mixup_alpha=0.8))
    """How images are mixed, for both; the default is DeiT's."""
    finish: FinishConfig = field(default_factory=FinishConfig)
    """How pixels become the model's input; the teacher's has its own mean and deviation."""

    def __post_init__(self) -> None:
        require_smoothing(self.smoothing)
        require(0 < self.weight < 1, f"weight must be above 0 and below 1; got weight={self.weight}")
        require(
            self.temperature is None or self.labels == "soft",
            f"temperature has no effect with labels=hard; got temperature={self.temperature}, set it to None",
        )
        require(
            self.temperature is None or self.temperature > 0,
            f"temperature must be above 0; got temperature={self.temperature}",
        )


class Distillation(nn.Module):
    """Cross-entropy of mixed images with their targets, and of the same with what the teacher says of the mixture.

    The teacher's part is that of the distillation token where the model has one, at the input or at its
    class-attention stage (CaiT, Table B.1), and otherwise that of the image's one answer.
    """

    def __init__(self, model: nn.Module, config: DistillConfig, teacher: Teacher) -> None:
        super().__init__()
        self.model, self.config, self.teacher = as_model(model), config, teacher
        refuse_token_head(self.model, "distillation")
        require_same_classes(teacher.name, teacher.model.config.classes, self.model.config.classes)

    def forward(self, batch: Batch) -> Losses:
        config, teacher = self.config, self.teacher
        mix = draw_mix(config.mix, batch.seeds, self.model, token_targets=False)
        images = finish_by_seeds(batch.images, config.finish, batch.seeds).to(type_of(self.model))
        prediction = mix.predict(self.model, images)
        shown = finish_by_seeds(batch.images, replace(config.finish, mean=teacher.mean, std=teacher.std), batch.seeds)
        answer = teacher.answer(mix.pixels(shown))

        targets = image_targets(batch.classes, self.model.config.classes, smoothing=config.smoothing)
        image_loss = image_cross_entropy(prediction.image_logits, mix.image_targets(targets))
        taught = prediction.distillation_logits
        taught = prediction.image_logits if taught is None else taught
        if config.labels == "hard":
            teacher_loss = F.cross_entropy(taught.to(wide(taught)), answer.argmax(-1))
        else:
            teacher_loss = softened_divergence(taught, answer, config.temperature or TEMPERATURE)
        total = (1 - config.weight) * image_loss + config.weight * teacher_loss
        return Losses(total, {"image": image_loss.detach(), "teacher": teacher_loss.detach()})

    def evaluate(self, batch: Batch) -> Prediction:
        """The model's answer on images as they are; a sharded model can be asked only here."""
        return evaluate(self.model, batch, self.config.finish)


def softened_divergence(
    logits: Float[Tensor, "b k"], teachers: Float[Tensor, "b k"], temperature: float
) -> Float[Tensor, ""]:
    """Mean over images of the teacher's divergence from the student, times temperature squared (DeiT, eq. 2).

    The factor keeps the size of gradients, which fall with its square.
    """
    own, other = ((x.to(wide(x)) / temperature).log_softmax(-1) for x in (logits, teachers))
    return (other.exp() * (other - own)).sum(-1).mean() * temperature**2
