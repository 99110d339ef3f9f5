"""Distillation: losses and gradients beside loops, with and without a distillation token, and what is refused."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from alltokens.augment.finish import FinishConfig
from alltokens.data.batch import Batch
from alltokens.errors import UserError
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.distill import Distillation, DistillConfig
from alltokens.objectives.mixing import MixConfig, Model, draw_mix
from alltokens.objectives.teachers import Teacher
from alltokens.plain import from_plain, to_plain

from ..kinds import KINDS, lively
from .batches import CLASSES, a_batch, a_model, check_split, image_loss_by_hand, mixed_pixels, mixed_prediction

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
PLAIN = FinishConfig(erase=0.0)
BOTH = MixConfig(kind="cutmix_or_mixup", mixup_alpha=0.8)
STUDENTS = {
    "without a token": lambda: a_model("rectangle", token_head=False),
    "with a token": lambda: lively(KINDS["distilled"]).double().eval(),
    "class attention without a token": lambda: lively(KINDS["cait"]).double().eval(),
    "class attention with a token": lambda: lively(replace(KINDS["cait distilled"], token_head=False)).double().eval(),
    "timm": lambda: a_model("timm/test_resnet", token_head=False),
}
STUDENT = pytest.mark.parametrize("student", STUDENTS.values(), ids=STUDENTS)


def a_teacher(kind: str, mean: Any = MEAN, std: Any = STD) -> Teacher:
    model = a_model(kind, token_head=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # not the weights of a student
    return Teacher("toy", model.requires_grad_(False), mean, std)


def teacher_for(model: Model) -> Teacher:
    return a_teacher("rectangle" if model.config.image_size == (32, 48) else "timm/test_vit")


def teacher_loss(config: DistillConfig, logits: Tensor, teachers: Tensor) -> Tensor:
    """Of one image, class by class."""
    heat = 1.0 if config.labels == "hard" else config.temperature or 3.0
    own, other = logits / heat, teachers / heat
    total, of_teacher = own.exp().sum().log(), other.exp().sum().log()
    if config.labels == "hard":
        return total - own[max(range(CLASSES), key=lambda k: float(other[k]))]
    loss = torch.zeros(()).double()
    for k in range(CLASSES):
        log_probability = other[k] - of_teacher
        loss = loss + heat**2 * log_probability.exp() * (log_probability - (own[k] - total))
    return loss


def losses_by_hand(model: Model, config: DistillConfig, teacher: Teacher, batch: Batch) -> dict[str, Tensor]:
    mix = draw_mix(config.mix, batch.seeds, model, token_targets=False)
    pixels = batch.images.double() / 255
    own, teachers = (
        (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        for mean, std in ((config.finish.mean, config.finish.std), (teacher.mean, teacher.std))
    )
    prediction = mixed_prediction(model, own, mix)
    answer = teacher.model(mixed_pixels(teachers, mix)).image_logits
    image = image_loss_by_hand(ClassifyConfig(smoothing=config.smoothing), batch, mix, prediction.image_logits)
    has_token = getattr(model.config, "distillation_token", False)
    taught = prediction.distillation_logits if has_token else prediction.image_logits
    losses = [teacher_loss(config, taught[each], answer[each]) for each in range(len(batch))]
    of_teacher = sum(losses) / len(losses)
    return {"total": (1 - config.weight) * image + config.weight * of_teacher, "image": image, "teacher": of_teacher}


def check_by_hand(model: Model, config: DistillConfig) -> None:
    batch, teacher = a_batch(model), teacher_for(model)
    losses, by_hand = Distillation(model, config, teacher)(batch), losses_by_hand(model, config, teacher, batch)
    found = {"total": losses.total.detach()} | losses.parts
    # Pixels are normalised in float32.
    torch.testing.assert_close(found, {name: loss.detach() for name, loss in by_hand.items()}, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(total, list(model.parameters())) for total in (losses.total, by_hand["total"])]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    named = zip(model.named_parameters(), gradients[0], strict=True)
    # A softmax does not feel what is added to all of its inputs.
    assert all(gradient.any() or name.endswith("before_bias") for (name, _), gradient in named)


@STUDENT
@pytest.mark.parametrize("labels", ["hard", "soft"])
def test_the_loss_is_that_of_loops_over_images_and_classes(student: Any, labels: Any) -> None:
    check_by_hand(student(), DistillConfig(teacher="toy", labels=labels, mix=BOTH, finish=PLAIN))


@pytest.mark.parametrize("mix", [MixConfig(), MixConfig(kind="none"), MixConfig(kind="cutmix")])
def test_the_teacher_sees_every_mix_as_the_student_does(mix: MixConfig) -> None:
    config = DistillConfig(teacher="toy", labels="soft", temperature=2.0, weight=0.1, mix=mix, finish=PLAIN)
    check_by_hand(STUDENTS["with a token"](), config)


@pytest.mark.parametrize("mix", [BOTH, MixConfig()])
def test_a_student_that_is_its_own_teacher_is_taught_nothing(mix: MixConfig) -> None:
    model = STUDENTS["without a token"]()
    config = DistillConfig(teacher="itself", labels="soft", mix=mix, finish=FinishConfig(erase=0.5))
    teacher = Teacher("itself", deepcopy(model), config.finish.mean, config.finish.std)
    losses = Distillation(model, config, teacher)(a_batch(model))
    torch.testing.assert_close(losses.parts["teacher"], torch.zeros(()).double(), rtol=0, atol=1e-9)


def test_a_batch_has_the_mean_of_the_losses_and_gradients_of_its_halves() -> None:
    model = STUDENTS["class attention with a token"]()
    config = DistillConfig(teacher="toy", finish=FinishConfig(erase=0.5))
    check_split(Distillation(model, config, teacher_for(model)), a_batch(model))


def test_nothing_of_the_teacher_is_saved_trained_or_switched_to_training() -> None:
    model = STUDENTS["with a token"]()
    teacher = teacher_for(model)
    objective = Distillation(model, DistillConfig(teacher="toy"), teacher)
    before = deepcopy(teacher.model.state_dict())
    objective.train()(a_batch(model)).total.backward()
    assert set(objective.state_dict()) == {f"model.{name}" for name in model.state_dict()}
    assert len(list(objective.parameters())) == len(list(model.parameters()))
    assert not any(module.training for module in teacher.model.modules())
    assert all(parameter.grad is None for parameter in teacher.model.parameters())
    torch.testing.assert_close(teacher.model.state_dict(), before, rtol=0, atol=0)


def test_evaluation_asks_the_student_alone_and_takes_odd_batches() -> None:
    model = STUDENTS["with a token"]()
    objective = Distillation(model, DistillConfig(teacher="toy"), teacher_for(model))
    assert objective.evaluate(a_batch(model, 3)).distillation_logits.shape == (3, CLASSES)


def test_a_config_is_the_same_after_a_file() -> None:
    config = DistillConfig(teacher="timm/resnet50", labels="soft", temperature=1.0, weight=0.1)
    assert from_plain(DistillConfig, to_plain(config)) == config


def sentence(action: Any) -> str:
    with pytest.raises(UserError) as error:
        action()
    return str(error.value)


def test_a_token_head_that_would_never_be_trained_is_refused() -> None:
    config = DistillConfig(teacher="toy")
    assert sentence(lambda: Distillation(a_model("rectangle"), config, a_teacher("rectangle"))) == (
        "distillation trains no token head; got a model with token_head=True, build it without"
    )


def test_a_teacher_of_other_classes_is_refused() -> None:
    model = lively(replace(KINDS["distilled"], classes=7))
    assert sentence(lambda: Distillation(model, DistillConfig(teacher="toy"), a_teacher("rectangle"))) == (
        "the teacher must have the model's 7 classes; 'toy' has 5"
    )


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"smoothing": 1.0}, "smoothing must be at least 0 and below 1; got smoothing=1.0"),
        ({"weight": 1.0}, "weight must be above 0 and below 1; got weight=1.0"),
        (
            {"temperature": 3.0},
            "temperature has no effect with labels=hard; got temperature=3.0, set it to None",
        ),
        ({"labels": "soft", "temperature": 0.0}, "temperature must be above 0; got temperature=0.0"),
    ],
)
def test_a_config_says_what_is_wrong_with_it(field: dict[str, Any], expected: str) -> None:
    assert sentence(lambda: DistillConfig(teacher="toy", **field)) == expected
