"""A trained model asked about data sets and pictures, against asking it image by image."""

from dataclasses import replace

import pytest
import timm
import torch
from timm.data import create_transform

from alltokens.annotate.write import Machine
from alltokens.augment.finish import FinishConfig
from alltokens.data.samples import EvaluationConfig, EvaluationSamples
from alltokens.errors import UserError
from alltokens.evaluate.inference import PICTURES, Trained, evaluate_source, predict_pictures, resized
from alltokens.models.resize import set_image_size
from alltokens.models.timm_model import TimmClassifier, timm_config

from ..data.pictures import source_of
from ..kinds import KINDS, TINY, images_for, lively

CPU = torch.device("cpu")
MACHINE = Machine(CPU, batch=4, workers=0)
CLASSES = ("class0", "class1", "class5", "class3", "class4")
CROP = 0.8


def silent(done: int, total: int) -> None:
    """No progress."""


def trained(**changes) -> Trained:
    """A model with a token head that sees rectangles."""
    model = lively(replace(KINDS["lvvit"], **changes)).eval()
    evaluation = EvaluationConfig(crop=CROP, interpolation="bilinear")
    return Trained("mine", model, CLASSES, evaluation, FinishConfig())


@torch.no_grad()
def scores_of(asked: Trained, index: int, token_weight: float) -> torch.Tensor:
    """Of one image, by timm's transform and the rule written out."""
    transform = create_transform((3, *asked.image_size), crop_pct=CROP, interpolation="bilinear")
    prediction = asked.model(transform(source_of().image(index))[None])
    return (prediction.image_logits + token_weight * prediction.token_logits.max(1).values)[0]


def test_every_readable_image_with_a_class_is_asked_about_once():
    told = []
    asked, source = trained(), source_of(broken=[1, 6])
    outcome = evaluate_source(asked, source, 0.5, MACHINE, lambda done, total: told.append((done, total)))
    assert told == [(4, 11), (8, 11), (11, 11)]
    assert outcome.unreadable == ("class1/01.png", "class5/06.png")
    assert outcome.without_class == 1
    assert list(outcome.answers) == ["image", "image + 0.5 max token"]
    kept = [index for index in range(11) if index not in (1, 3, 6)]
    for weight, answers in zip((0.0, 0.5), outcome.answers.values(), strict=True):
        assert answers.keys == tuple(source.keys[index] for index in kept)
        assert answers.truth.tolist() == [1 if index % 2 else 2 for index in kept]
        scores = torch.stack([scores_of(asked, index, weight) for index in kept])
        assert answers.first.equal(scores.argsort(1, descending=True)[:, :5])
        torch.testing.assert_close(
            answers.loss, torch.nn.functional.cross_entropy(scores, answers.truth, reduction="none")
        )


def test_a_batch_that_cannot_be_read_or_has_no_class_is_passed_over():
    outcome = evaluate_source(trained(), source_of(broken=[0, 1, 2]), 0.0, MACHINE, silent)
    assert list(outcome.answers) == ["image"]
    assert len(outcome.answers["image"]) == 7


def test_a_data_set_that_says_nothing_is_refused():
    source = source_of(4)
    with pytest.raises(UserError) as error:
        evaluate_source(trained(), replace(source, labels=[-1] * 4), 0.5, MACHINE, silent)
    assert str(error.value) == "no image of 'photos' has a class; put each into a folder with the name of its class"
    with pytest.raises(UserError) as error:
        evaluate_source(trained(), source_of(5, broken=[0, 1, 2, 4]), 0.5, MACHINE, silent)
    assert str(error.value) == (
        "no image of 'photos' that has a class can be read, such as 'class5/00.png', 'class1/01.png', 'class5/02.png'"
    )


def answers_of(asked: Trained, weight: float, count: int = 11) -> list[int]:
    """The first answer for each image."""
    return [int(scores_of(asked, index, weight).argmax()) for index in range(count)]


def test_real_labels_count_for_images_without_a_class_too():
    asked, source = trained(), source_of(broken=[1, 6])
    first = answers_of(asked, 0.5)
    # Right about the images 0, 3 (which has no class), 4 and the broken 1; wrong about 5, 7, 8; the rest have none.
    real = {source.keys[index]: {first[index], 9} for index in (0, 1, 3, 4)}
    real |= {source.keys[index]: {(first[index] + 1) % 5} for index in (5, 7, 8)}
    outcome = evaluate_source(asked, source, 0.5, MACHINE, silent, real)
    plain = evaluate_source(asked, source, 0.5, MACHINE, silent)
    assert outcome.real.images == 6
    for weight, share in zip((0.0, 0.5), outcome.real.top1.values(), strict=True):
        answered = answers_of(asked, weight)
        assert share == sum(answered[index] in real[source.keys[index]] for index in (0, 3, 4, 5, 7, 8)) / 6
    assert outcome.real.top1["image + 0.5 max token"] == 0.5
    assert plain.real is None
    assert (outcome.unreadable, outcome.without_class) == (plain.unreadable, plain.without_class)
    for rule, answers in outcome.answers.items():
        assert answers.keys == plain.answers[rule].keys
        assert answers.loss.equal(plain.answers[rule].loss)


@pytest.mark.parametrize("classes", [(), ("val", "more")])
def test_real_labels_need_no_folders_that_are_classes(classes: tuple[str, ...]):
    asked, source = trained(), source_of(broken=[0, 1, 2, 3])
    source = replace(source, classes=classes, labels=source.labels if classes else [-1] * 11)
    real = {source.keys[index]: {first} for index, first in enumerate(answers_of(asked, 0.0))}
    outcome = evaluate_source(asked, source, 0.0, MACHINE, silent, real)
    assert (outcome.real.images, outcome.real.top1) == (7, {"image": 1.0})
    assert len(outcome.answers["image"]) == 0
    assert outcome.without_class == 7


def test_with_real_labels_too_classes_that_the_model_does_not_know_are_named():
    source = replace(source_of(), classes=("class1", "val"))
    with pytest.raises(UserError) as error:
        evaluate_source(trained(), source, 0.0, MACHINE, silent, {source.keys[0]: {1}})
    assert str(error.value).startswith("'photos' has 1 classes that are not among the model's 5, such as 'val'; ")


def test_with_real_labels_too_images_must_be_readable():
    source = source_of(2, broken=[0, 1])
    with pytest.raises(UserError) as error:
        evaluate_source(trained(), source, 0.0, MACHINE, silent, {source.keys[0]: {1}})
    assert str(error.value) == "no image of 'photos' can be read, such as 'class5/00.png', 'class1/01.png'"


def test_pictures_are_answered_in_their_order_and_those_unreadable_say_why():
    asked, count = trained(), PICTURES + 3
    samples = EvaluationSamples(source_of(count, broken=[2]), CLASSES, asked.evaluation, asked.image_size)
    pictures = {f"picture {index}": lambda index=index: samples.sample(index) for index in range(count)}
    told = []
    predicted = predict_pictures(asked, pictures, 0.5, 3, CPU, lambda done, total: told.append((done, total)))
    assert told == [(PICTURES, count), (count, count)]
    assert predicted.rule == "image + 0.5 max token"
    assert list(predicted.answers) == [name for name in pictures if name != "picture 2"]
    assert list(predicted.unreadable) == ["picture 2"]
    assert predicted.unreadable["picture 2"].startswith("the image is damaged or not one of")
    for index in (0, 1, 7):
        certainty, first = scores_of(asked, index, 0.5).softmax(0).sort(descending=True)
        answers = predicted.answers[f"picture {index}"]
        assert [number for number, _ in answers] == first[:3].tolist()
        assert [share for _, share in answers] == pytest.approx(certainty[:3].tolist(), rel=1e-4)


def test_no_more_answers_are_given_than_there_are_classes():
    samples = EvaluationSamples(source_of(1), CLASSES, trained().evaluation, trained().image_size)
    predicted = predict_pictures(trained(), {"a": lambda: samples.sample(0)}, 0.0, 9, CPU, silent)
    assert predicted.rule == "image"
    assert sum(share for _, share in predicted.answers["a"]) == pytest.approx(1.0)
    assert len(predicted.answers["a"]) == 5


@torch.no_grad()
def test_our_models_are_resized_with_their_positions_resampled():
    ours, expected = resized(lively(TINY), 64).eval(), lively(TINY).eval()
    set_image_size(expected, 64, 64)
    images = images_for(expected.config)
    assert ours.config == expected.config
    assert ours(images).image_logits.equal(expected(images).image_logits)


@torch.no_grad()
def test_timms_models_are_resized_as_timm_does():
    torch.manual_seed(0)
    model = TimmClassifier(replace(timm_config("test_vit"), classes=4)).eval()
    theirs = timm.create_model("test_vit", num_classes=4).eval()
    theirs.load_state_dict(model.model.state_dict())
    theirs.set_input_size(img_size=(96, 96))
    images = torch.randn(2, 3, 96, 96)
    torch.testing.assert_close(resized(model, 96).eval()(images).image_logits, theirs(images))


def test_a_size_that_is_no_multiple_of_the_patch_is_refused():
    with pytest.raises(UserError) as error:
        resized(lively(TINY), 40)
    assert str(error.value) == "image_size must be a multiple of the patch; got 40 x 40 with patch 16"


def test_a_model_that_does_not_fit_photos_or_its_classes_is_refused():
    with pytest.raises(UserError) as error:
        trained(channels=1)
    assert str(error.value) == "'mine' takes images of 1 channels; photos have 3"
    with pytest.raises(UserError) as error:
        trained(classes=7)
    assert str(error.value) == "'mine' has 7 classes, and the run that it lies in names 5"


def test_a_token_weight_needs_a_token_head():
    trained().require_tokens(0.3)
    bare = replace(trained(), model=lively(TINY))
    bare.require_tokens(None)
    with pytest.raises(UserError) as error:
        bare.require_tokens(0.3)
    assert str(error.value) == (
        "--token-weight needs a model with a token head; got --token-weight 0.3 and 'mine', which has none"
    )
    with pytest.raises(UserError) as error:
        trained().require_tokens(-1.0)
    assert str(error.value) == "--token-weight must be at least 0; got -1.0"
