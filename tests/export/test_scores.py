"""What is recorded beside an exported model, and the check that it answers as the model does."""

import logging
import warnings
from dataclasses import replace

import pytest
import torch

from alltokens.errors import UserError
from alltokens.export.scores import Scores, check, quiet, record
from alltokens.models.config import LinearStem, ViTConfig
from alltokens.models.usage import Usage
from alltokens.models.vit import VisionTransformer
from alltokens.models.zoo import find

from ..kinds import KINDS, TINY, images_for, lively


def crop_ratio(name: str, config: ViTConfig) -> float:
    with torch.device("meta"):
        return record(VisionTransformer(config), name, None).crop_ratio


@torch.no_grad()
def test_scores_are_the_published_evaluation_rule():
    model = lively(KINDS["lvvit"]).eval()
    images = images_for(model.config)
    prediction = model(images)
    expected = prediction.image_logits + 0.5 * prediction.token_logits.max(1).values
    torch.testing.assert_close(Scores(model)(images), expected, rtol=0, atol=1e-5)


def test_the_exported_copy_asks_for_no_gradients_and_leaves_the_model_alone():
    model = lively(TINY).train()
    assert not any(parameter.requires_grad for parameter in Scores(model).parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_named_model_is_recorded_with_its_published_preparation():
    with torch.device("meta"):
        about = record(VisionTransformer(find("lvvit_m")), "lvvit_m", None)
    assert (about.model, about.image_size, about.crop_ratio) == ("lvvit_m", (224, 224), 1.0)
    assert (about.interpolation, about.mean) == ("bicubic", (0.485, 0.456, 0.406))
    assert about.standard_deviation == (0.229, 0.224, 0.225)


def test_a_trained_model_is_recorded_as_it_is_used():
    usage = Usage(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), crop=0.8, interpolation="bilinear", classes=tuple("abcde"))
    about = record(VisionTransformer(TINY), "mine", None, usage)
    assert (about.crop_ratio, about.interpolation) == (0.8, "bilinear")
    assert (about.mean, about.standard_deviation) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert record(VisionTransformer(TINY), "mine", 0.7, usage).crop_ratio == 0.7


def test_a_checkpoint_has_the_crop_ratio_of_the_model_with_its_config():
    """deit_s and vit_s differ in their drop path alone, and cait_t8_deit_s in nothing but its name."""
    sizes = {"classes": 10, "image_size": (96, 64)}
    assert crop_ratio("mine", replace(find("deit_s"), **sizes)) == 0.9
    assert crop_ratio("mine", replace(find("vit_s"), **sizes)) == 0.95
    assert crop_ratio("cait_t8_deit_s", find("deit_s")) == 0.875
    assert crop_ratio("lvvit_m", find("deit_s")) == 0.9


def test_a_checkpoint_trained_otherwise_has_the_crop_ratio_of_its_architecture():
    assert crop_ratio("mine", replace(find("lvvit_m"), drop_path=0.3, token_weight=0.0)) == 1.0


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(find("deit_s"), drop_path=0.3), id="of several"),
        pytest.param(replace(TINY, stem=LinearStem(patch=8)), id="of none"),
    ],
)
def test_a_crop_ratio_that_nobody_published_is_asked_for(config):
    with pytest.raises(UserError) as error:
        crop_ratio("mine", config)
    assert str(error.value) == (
        "the crop ratio of 'mine' is not known, as its config is no published one; give --crop-ratio"
    )
    assert record(VisionTransformer(TINY), "mine", 0.7).crop_ratio == 0.7


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1.5])
def test_a_crop_ratio_is_a_share(ratio):
    with pytest.raises(UserError, match=rf"^crop_ratio must be from 0.001 to 1; got crop_ratio={ratio}$"):
        record(VisionTransformer(TINY), "mine", ratio)


def test_the_check_gives_the_largest_difference():
    model = lively(TINY)
    with torch.no_grad():
        model.head.weight.mul_(0.1)
        model.head.bias.zero_()
    assert check(model, lambda images: model(images).scores() + 3e-5 * len(images) / 5) == pytest.approx(3e-5, rel=0.1)


def test_the_check_is_relative_to_large_scores():
    model = lively(TINY)
    with torch.no_grad():
        model.head.weight.mul_(1e4)
        model.head.bias.mul_(1e4)
    scores = Scores(model)
    assert check(model, lambda images: scores(images) + 0.1) < 1e-4


def test_the_check_sees_a_model_in_evaluation_mode():
    model = lively(KINDS["lvvit"]).train()
    assert check(model, Scores(model)) < 1e-5


@pytest.mark.parametrize(("wrong", "shown"), [(0.01, "1.0e-02"), (float("nan"), "nan")])
def test_a_large_difference_is_an_error(wrong, shown):
    model = lively(TINY)
    with torch.no_grad():
        model.head.weight.mul_(0.1)
        model.head.bias.zero_()

    def answer(images):
        return model(images).scores() + (wrong if len(images) == 5 else 0.0)

    with pytest.raises(UserError) as error:
        check(model, answer)
    assert str(error.value) == (
        "what was exported does not answer as the model does: for a batch of 5 the scores differ by "
        f"{shown} of the largest, more than 1e-04; it was not kept"
    )


def test_chatter_is_kept_off_and_comes_back(caplog):
    logger = logging.getLogger("chatter")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with quiet():
            logger.error("inside")
            warnings.warn("inside", stacklevel=1)
        logger.error("after")
        with pytest.raises(UserWarning, match="after"):
            warnings.warn("after", stacklevel=1)
    assert caplog.messages == ["after"]
