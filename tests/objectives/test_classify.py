"""Classification: losses and gradients beside loops, ReLabel, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from alltokens.augment.finish import FinishConfig
from alltokens.errors import UserError
from alltokens.objectives.classify import Classification, ClassifyConfig
from alltokens.objectives.finishing import normalize
from alltokens.objectives.mixing import MixConfig
from alltokens.plain import from_plain, to_plain

from ..kinds import KINDS, lively
from .batches import a_batch, a_model, check_by_hand, check_split

MIXES = {
    "both": MixConfig(kind="cutmix_or_mixup", mixup_alpha=0.8),
    "cutmix": MixConfig(kind="cutmix"),
    "mixup": MixConfig(kind="mixup", alpha=0.3),
    "token": MixConfig(),
    "none": MixConfig(kind="none"),
}
MIX = pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)


def plain_model(kind: str) -> Any:
    return a_model(kind, token_head=False)


@MIX
@pytest.mark.parametrize("kind", ["rectangle", "timm/test_resnet"])
def test_the_loss_is_that_of_loops_over_images_and_classes(kind: str, mix: MixConfig) -> None:
    model = plain_model(kind)
    check_by_hand(Classification(model, ClassifyConfig(mix=mix)), a_batch(model))


@MIX
@pytest.mark.parametrize("kind", ["rectangle", "timm/test_resnet"])
def test_the_binary_loss_is_that_of_loops_over_images_and_classes(kind: str, mix: MixConfig) -> None:
    model = plain_model(kind)
    check_by_hand(Classification(model, ClassifyConfig(loss="binary", smoothing=0.0, mix=mix)), a_batch(model))


def test_the_binary_loss_takes_score_maps_too() -> None:
    model = plain_model("rectangle")
    config = ClassifyConfig(loss="binary", smoothing=0.0, image_target="score_map", mix=MIXES["cutmix"])
    check_by_hand(Classification(model, config), a_batch(model, whole_views=True))


@pytest.mark.parametrize("rule", [None, "zero_fill", "probabilities"])
@pytest.mark.parametrize("choice", ["score_map", "blend"])
def test_relabel_compares_the_image_with_its_score_map_and_needs_no_token_head(choice: str, rule: Any) -> None:
    model = plain_model("rectangle")
    config = ClassifyConfig(image_target=choice, rule=rule, mix=MIXES["cutmix"])
    check_by_hand(Classification(model, config), a_batch(model, whole_views=True))


@MIX
def test_a_batch_has_the_mean_of_the_losses_and_gradients_of_its_halves(mix: MixConfig) -> None:
    model = plain_model("rectangle")
    config = ClassifyConfig(mix=mix, image_target="score_map", finish=FinishConfig(erase=0.5))
    check_split(Classification(model, config), a_batch(model))


def test_plain_labels_need_no_score_maps() -> None:
    model = plain_model("square")
    batch = a_batch(model)
    losses = [Classification(model)(each).total for each in (batch, replace(batch, score_maps=None))]
    assert losses[0] == losses[1]


def test_evaluation_neither_mixes_nor_erases_and_takes_odd_batches() -> None:
    model = plain_model("rectangle")
    batch = a_batch(model, 3)
    expected = model(normalize(batch.images, FinishConfig()).double())
    torch.testing.assert_close(Classification(model).evaluate(batch), expected)


def test_a_config_is_the_same_after_a_file() -> None:
    config = ClassifyConfig(image_target="blend", rule="probabilities")
    assert from_plain(ClassifyConfig, to_plain(config)) == config


def sentence(action: Any) -> str:
    with pytest.raises(UserError) as error:
        action()
    return str(error.value)


@pytest.mark.parametrize("kind", ["rectangle", "timm/test_vit"])
def test_a_token_head_that_would_never_be_trained_is_refused(kind: str) -> None:
    assert sentence(lambda: Classification(a_model(kind))) == (
        "classification trains no token head; got a model with token_head=True, build it without"
    )


def test_a_distillation_head_that_would_never_be_trained_is_refused() -> None:
    assert sentence(lambda: Classification(lively(KINDS["distilled"]))) == (
        "classification trains no distillation head; got a model with distillation_token=True, build it without"
    )


def test_relabel_without_score_maps_is_refused() -> None:
    model = plain_model("rectangle")
    batch = replace(a_batch(model), score_maps=None)
    assert sentence(lambda: Classification(model, ClassifyConfig(image_target="score_map"))(batch)) == (
        "these targets need score maps; got a batch without them, give a label store"
    )


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"smoothing": -0.1}, "smoothing must be at least 0 and below 1; got smoothing=-0.1"),
        (
            {"loss": "binary"},
            "classes that are judged one by one have no mass to share, so smoothing must be 0 with loss=binary; "
            "got smoothing=0.1",
        ),
        (
            {"rule": "zero_fill"},
            "rule has no effect with image_target=class_label; got rule=zero_fill, set it to None",
        ),
    ],
)
def test_a_config_says_what_is_wrong_with_it(field: dict[str, Any], expected: str) -> None:
    assert sentence(lambda: ClassifyConfig(**field)) == expected
