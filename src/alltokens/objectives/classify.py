"""Classification: the image alone is compared, with its class label or, as in ReLabel, with its score map."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from alltokens.augment.finish import FinishConfig
from alltokens.data.batch import Batch
from alltokens.errors import require
from alltokens.labels.align import ImageTarget, Rule, SparseTargets, image_targets, require_smoothing, view_targets
from alltokens.labels.score_map import ScoreMaps
from alltokens.models.prediction import Prediction
from alltokens.objectives.finishing import finish_by_seeds, normalize
from alltokens.objectives.losses import Losses, binary_cross_entropy, image_cross_entropy
from alltokens.objectives.mixing import MixConfig, Model, as_model, draw_mix
from alltokens.shapes import Float


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig:
    """What images are compared with, and what happens to them before."""

    loss: Literal["cross_entropy", "binary"] = "cross_entropy"
    """Cross-entropy of the classes' softmax, or the mean over classes of each one's own by its sigmoid (A2)."""
    smoothing: float = 0.1
    """Mass of every target that is spread evenly over all classes."""
    image_target: ImageTarget = "class_label"
    """What the image is compared with: its class label, its score map (ReLabel), or a blend."""
    rule: Rule | None = None
    """How a score map becomes probabilities; None is zero_fill."""
    mix: MixConfig = field(default_factory=lambda: MixConfig(kind="cutmix_or_mixup", mixup_alpha=0.8))
    """How images are mixed; the default is DeiT's."""
    finish: FinishConfig = field(default_factory=FinishConfig)
    """How pixels become the model's input."""

    def __post_init__(self) -> None:
        require_smoothing(self.smoothing)
        require(
            self.loss != "binary" or self.smoothing == 0,
            "classes that are judged one by one have no mass to share, so smoothing must be 0 with loss=binary; "
            f"got smoothing={self.smoothing}",
        )
        require(
            self.rule is None or self.image_target != "class_label",
            f"rule has no effect with image_target=class_label; got rule={self.rule}, set it to None",
        )


class Classification(nn.Module):
    """Cross-entropy of mixed images with their targets (TL, eq. 1), over all classes or of each by itself."""

    def __init__(self, model: nn.Module, config: ClassifyConfig | None = None) -> None:
        super().__init__()
        self.model, self.config = as_model(model), config or ClassifyConfig()
        refuse_token_head(self.model, "classification")
        refuse_distillation(self.model, "classification trains")

    def forward(self, batch: Batch) -> Losses:
        config, classes = self.config, self.model.config.classes
        mix = draw_mix(config.mix, batch.seeds, self.model, token_targets=False)
        images = finish_by_seeds(batch.images, config.finish, batch.seeds).to(type_of(self.model))
        prediction = mix.predict(self.model, images)
        whole = whole_view(batch.score_maps, batch.views, classes, config.image_target, config.rule or "zero_fill")
        targets = image_targets(batch.classes, classes, config.image_target, whole, config.smoothing)
        compare = image_cross_entropy if config.loss == "cross_entropy" else binary_cross_entropy
        loss = compare(prediction.image_logits, mix.image_targets(targets))
        return Losses(loss, {"image": loss.detach()})

    def evaluate(self, batch: Batch) -> Prediction:
        """The model's answer on images as they are; a sharded model can be asked only here."""
        return evaluate(self.model, batch, self.config.finish)


def type_of(model: Model) -> torch.dtype:
    """What the model computes in, where autocast does not decide."""
    return next(model.parameters()).dtype


def evaluate(model: Model, batch: Batch, config: FinishConfig) -> Prediction:
    """The model's answer on images that are normalised and no more."""
    return model(normalize(batch.images, config).to(type_of(model)))


def whole_view(
    score_maps: ScoreMaps | None, views: Float[Tensor, "b 2 3"], classes: int, choice: ImageTarget, rule: Rule
) -> SparseTargets | None:
    """The score map over what is seen of each image, where the choice asks for it."""
    if choice == "class_label":
        return None
    return view_targets(require_maps(score_maps), views, classes, rule)


def require_maps(score_maps: ScoreMaps | None) -> ScoreMaps:
    """The score maps, which a batch has only where a label store was given."""
    require(score_maps is not None, "these targets need score maps; got a batch without them, give a label store")
    assert score_maps is not None
    return score_maps


def refuse_token_head(model: Model, who: str) -> None:
    """Raise if there is one that would never be trained."""
    require(model.token_head is None, f"{who} trains no token head; got a model with token_head=True, build it without")


def refuse_distillation(model: nn.Module, who: str) -> None:
    """Raise if there is a head that would never be trained, for which processes would wait in vain."""
    require(
        getattr(model, "distillation_head", None) is None,
        f"{who} no distillation head; got a model with distillation_token=True, build it without",
    )
