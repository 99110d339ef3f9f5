"""Figures of classification against loops over images, and timm's own accuracy."""

import pytest
import torch
from timm.utils import accuracy

from alltokens.errors import UserError
from alltokens.evaluate.classification import (
    Answers,
    by_class,
    confusion_counts,
    confusions,
    scores_by_rule,
    worst_mistakes,
)
from alltokens.models.prediction import Prediction


def some_answers(images: int = 60, classes: int = 8) -> tuple[Answers, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(images, classes, generator=generator)
    truth = torch.randint(classes, (images,), generator=generator)
    return Answers.of([f"{row}.jpg" for row in range(images)], truth, scores), truth, scores


def test_accuracies_are_timms():
    answers, truth, scores = some_answers()
    theirs = accuracy(scores, truth, topk=(1, 2, 5))
    for among, percent in zip((1, 2, 5), theirs, strict=True):
        assert 100 * answers.accuracy(among) == pytest.approx(float(percent))


def test_the_loss_is_cross_entropy():
    answers, truth, scores = some_answers()
    assert answers.mean_loss() == pytest.approx(float(torch.nn.functional.cross_entropy(scores, truth)))
    torch.testing.assert_close(answers.certainty[:, 0], scores.softmax(1).amax(1))


def test_batches_join_to_the_whole():
    whole, truth, scores = some_answers()
    parts = [
        Answers.of(whole.keys[start : start + 25], truth[start : start + 25], scores[start : start + 25])
        for start in (0, 25, 50)
    ]
    joined = Answers.join(parts)
    assert joined.keys == whole.keys
    assert joined.first.equal(whole.first)
    assert joined.loss.equal(whole.loss)
    assert len(joined) == 60


def test_images_without_a_class_are_answered_and_can_be_left_out():
    whole, truth, scores = some_answers()
    known = torch.arange(60) % 7 > 0
    answers = Answers.of(whole.keys, truth.where(known, -1), scores)
    assert answers.first.equal(whole.first)
    assert answers.loss.isnan().equal(~known)
    kept = answers.with_class()
    assert kept.keys == tuple(key for key, is_known in zip(whole.keys, known, strict=True) if is_known)
    assert kept.truth.equal(truth[known])
    assert kept.first.equal(whole.first[known])
    assert kept.certainty.equal(whole.certainty[known])
    assert kept.loss.equal(whole.loss[known])


def test_figures_of_a_class_are_those_of_its_images():
    answers, truth, scores = some_answers()
    figures = {one.number: one for one in by_class(answers)}
    assert sum(one.images for one in figures.values()) == 60
    for number, one in figures.items():
        rows = [row for row in range(60) if truth[row] == number]
        order = [scores[row].argsort(descending=True).tolist() for row in rows]
        assert one.images == len(rows)
        assert one.top1 == pytest.approx(sum(first[0] == number for first in order) / len(rows))
        assert one.top5 == pytest.approx(sum(number in first[:5] for first in order) / len(rows))
        wrong = [first[0] for first in order if first[0] != number]
        assert one.mistaken_for == (max(sorted(set(wrong)), key=wrong.count) if wrong else None)


def test_a_class_that_is_always_right_is_mistaken_for_none():
    answers = Answers.of(["a"], torch.tensor([1]), torch.tensor([[0.0, 9.0]]))
    assert by_class(answers)[0].mistaken_for is None
    assert confusions(answers) == []
    assert worst_mistakes(answers, 3) == []


def test_confusions_are_counted_and_sorted():
    truth = torch.tensor([0, 0, 1, 2, 2, 2])
    scores = torch.eye(3)[[1, 1, 0, 2, 1, 0]]
    assert confusions(Answers.of("abcdef", truth, scores)) == [(0, 1, 2), (1, 0, 1), (2, 0, 1), (2, 1, 1)]


def test_the_worst_mistakes_are_sure_of_something_else():
    answers, _, _ = some_answers()
    places = worst_mistakes(answers, 4)
    losses = answers.loss[places].tolist()
    assert losses == sorted(losses, reverse=True)
    assert not answers.is_right()[places].any()
    assert losses[0] == float(answers.loss[~answers.is_right()].max())


def test_of_equally_frequent_mistakes_the_smallest_class_is_named():
    truth = torch.tensor([0, 0, 0, 0, 0])
    scores = torch.eye(4)[[3, 1, 1, 3, 2]]
    assert by_class(Answers.of("abcde", truth, scores))[0].mistaken_for == 1


def test_confusions_are_counted_for_the_classes_asked_for():
    answers, truth, scores = some_answers()
    numbers = [5, 0, 3]
    expected = [
        [sum(truth[row] == one and scores[row].argmax() == other for row in range(60)) for other in numbers]
        for one in numbers
    ]
    assert confusion_counts(answers, numbers).tolist() == expected


def test_fewer_classes_than_answers_are_all_kept():
    answers = Answers.of(["a"], torch.tensor([1]), torch.tensor([[3.0, 1.0]]))
    assert answers.first.tolist() == [[0, 1]]
    assert answers.accuracy(1) == 0.0
    assert answers.accuracy(5) == 1.0


def test_both_rules_where_there_are_tokens():
    prediction = Prediction(torch.tensor([[1.0, 2.0]]), torch.tensor([[[4.0, 0.0], [0.0, 1.0]]]))
    scores = scores_by_rule(prediction, 0.5)
    assert list(scores) == ["image", "image + 0.5 max token"]
    assert scores["image"].tolist() == [[1.0, 2.0]]
    assert scores["image + 0.5 max token"].tolist() == [[3.0, 2.5]]
    assert list(scores_by_rule(Prediction(torch.zeros(1, 2)), 0.5)) == ["image"]


def test_mistakes_are_sentences():
    with pytest.raises(UserError) as error:
        Answers.join([])
    assert str(error.value) == "there is no image to evaluate on; got 0 batches"
    with pytest.raises(UserError) as error:
        some_answers()[0].accuracy(6)
    assert str(error.value) == "the first 5 answers are kept; got among=6"
