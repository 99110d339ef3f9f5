"""Token labeling: the image is compared with its target, and every token with its own (TL, section 3)."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from alltokens.annotate.annotator import Annotator
from alltokens.augment.finish import FinishConfig
from alltokens.data.batch import Batch
from alltokens.errors import require
from alltokens.labels.align import ImageTarget, Rule, image_targets, require_smoothing, token_targets
from alltokens.mix.draws import Purpose, uniforms
from alltokens.models.prediction import Prediction
from alltokens.objectives.classify import evaluate, refuse_distillation, require_maps, type_of, whole_view
from alltokens.objectives.finishing import finish_by_seeds
from alltokens.objectives.losses import Losses, image_cross_entropy
from alltokens.objectives.mixing import MixConfig, Model, as_model, draw_mix, grid_of
from alltokens.objectives.teachers import maps_of_views, require_same_classes
from alltokens.shapes import Bool, Int


@dataclass(frozen=True, kw_only=True)
class TokenLabelConfig:
    """What images and their tokens are compared with, and what happens to them before."""

    beta: float = 0.5
    """Weight of the tokens' loss beside the image's (TL, eq. 3)."""
    smoothing: float = 0.1
    """Mass of every target that is spread evenly over all classes."""
    image_target: ImageTarget = "class_label"
    """What the image is compared with: its class label, its score map, or a blend."""
    rule: Rule = "zero_fill"
    """How a score map becomes probabilities: zero_fill is the published way, for annotators whose logits for what they
    see are above zero, as those trained by softmax have them."""
    participation: float = 1.0
    """Share of an image's tokens, drawn anew each time, that are compared with their labels (TL, Figure 4)."""
    teacher: str | None = None
    """An annotator that answers on each view as it is trained on, in place of a label store (TL, Table 4)."""
    teacher_weights: str | None = None
    """The teacher's weight file; none: what timm publishes, where the name is timm's."""
    mix: MixConfig = field(default_factory=MixConfig)
    """How images are mixed."""
    finish: FinishConfig = field(default_factory=FinishConfig)
    """How pixels become the model's input."""

    def __post_init__(self) -> None:
        require(
            self.beta > 0,
            f"beta must be above 0, or the token head would not be trained; got beta={self.beta}; ReLabel is "
            "Classification with image_target=score_map",
        )
        require_smoothing(self.smoothing)
        share = self.participation
        require(0 < share <= 1, f"participation must be above 0 and at most 1; got participation={share}")
        require(
            self.teacher is not None or self.teacher_weights is None,
            f"teacher_weights are a teacher's; got teacher_weights={self.teacher_weights} without a teacher",
        )


class TokenLabeling(nn.Module):
    """Cross-entropy of the mixed image with its target, plus beta times the mean of its tokens' (TL, eq. 4)."""

    def __init__(
        self, model: nn.Module, config: TokenLabelConfig | None = None, teacher: Annotator | None = None
    ) -> None:
        super().__init__()
        self.model, self.config, self.teacher = as_model(model), config or TokenLabelConfig(), teacher
        require_trainable(self.model)
        named = self.config.teacher
        require(
            (named is None) == (teacher is None),
            "a teacher that the config names is handed over opened, and no other; "
            f"got teacher={named} and {'none' if teacher is None else teacher.name}",
        )
        if teacher is not None:
            require_same_classes(teacher.name, len(teacher.classes), self.model.config.classes)

    def forward(self, batch: Batch) -> Losses:
        config, grid, classes = self.config, grid_of(self.model), self.model.config.classes
        mix = draw_mix(config.mix, batch.seeds, self.model, token_targets=True)
        images = finish_by_seeds(batch.images, config.finish, batch.seeds).to(type_of(self.model))
        prediction = mix.predict(self.model, images)

        if self.teacher is None:
            maps, views = require_maps(batch.score_maps), batch.views
        else:
            maps = maps_of_views(self.teacher, batch.images)
            views = maps.views
        whole = whole_view(maps, views, classes, config.image_target, config.rule)
        image = image_targets(batch.classes, classes, config.image_target, whole, config.smoothing)
        tokens = token_targets(maps, views, grid, classes, config.rule, config.smoothing)

        image_loss = image_cross_entropy(prediction.image_logits, mix.image_targets(image))
        assert prediction.token_logits is not None
        counted = participants(batch.seeds, grid[0] * grid[1], config.participation)
        token_loss = mix.token_loss(prediction.token_logits, tokens, counted)
        total = image_loss + config.beta * token_loss
        return Losses(total, {"image": image_loss.detach(), "token": token_loss.detach()})

    def evaluate(self, batch: Batch) -> Prediction:
        """The model's answer on images as they are; a sharded model can be asked only here."""
        return evaluate(self.model, batch, self.config.finish)


def participants(seeds: Int[Tensor, " b"], tokens: int, share: float) -> Bool[Tensor, "b tokens"] | None:
    """As many tokens of each image as the share says, one at least; None is all."""
    if share == 1:
        return None
    ranks = uniforms(seeds, Purpose.PARTICIPATION, tokens).argsort(1).argsort(1)
    return ranks < max(1, round(share * tokens))


def require_trainable(model: Model) -> None:
    """Raise unless token labels train every head of the model."""
    require(
        model.token_head is not None,
        "token labels need a model with a token head, as lvvit_s has; got one without",
    )
    refuse_distillation(model, "token labels train")
