"""ImageNet's class numbers and ReaL labels, against loops over timm's own files and timm's evaluator."""

import json
import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from timm.data import ImageNetInfo, RealLabelsImagenet

from alltokens.annotate.class_map import class_names
from alltokens.errors import UserError
from alltokens.evaluate.classification import Answers
from alltokens.evaluate.imagenet import name_numbers, real_figures, real_labels
from alltokens.sources.source import Source, open_source

IDS = tuple(ImageNetInfo().label_names())
REAL: list[list[int]] = json.loads(files("timm.data").joinpath("_info/imagenet_real_labels.json").read_text())
"""The ImageNet class numbers that are right about each validation image, in their order."""


def key_of(number: int) -> str:
    """From 1, as the files count."""
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def source_of(keys: Sequence[str], classes: Sequence[str] = ()) -> Source:
    """Images that nothing may decode."""
    return Source("val", keys, [-1] * len(keys), classes, lambda index: b"no image")


def shuffled(classes: Sequence[str], count: int) -> tuple[str, ...]:
    return tuple(random.Random(0).sample(classes, count))


def sentence(call) -> str:
    with pytest.raises(UserError) as error:
        call()
    return str(error.value)


# ImageNet-V2


def test_numbers_of_folders_that_are_sorted_as_text_are_imagenets(tmp_path: Path):
    for number in (*range(13), 107, 999):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / f"{number}.jpeg").touch()
    source = open_source(str(tmp_path))
    assert source.classes[:4] == ("0", "1", "10", "107")
    named = name_numbers(source, shuffled(IDS, 1000))
    assert list(named.keys) == list(source.keys)
    for key, label in zip(named.keys, named.labels, strict=True):
        assert named.classes[label] == ImageNetInfo().index_to_label_name(int(Path(key).parent.name))


def test_numbers_may_have_leading_zeros():
    assert name_numbers(source_of("ab", ["000", "010"]), IDS).classes == (IDS[0], IDS[10])


@pytest.mark.parametrize("count", [11821, 21841])
def test_models_of_more_of_imagenet_are_asked_by_number_too(count: int):
    assert name_numbers(source_of("ab", ["3"]), class_names(count)).classes == (IDS[3],)


@pytest.mark.parametrize(
    ("source_classes", "model_classes"),
    [
        (("0", "1"), tuple(map(str, range(10)))),
        (("0", "1"), ("cat", "dog")),
        (("0", "1"), (*IDS, "0")),
        (("0", "1000"), IDS),
        (("0", "-1"), IDS),
        (("0", "cat"), IDS),
        (("0", "\N{ARABIC-INDIC DIGIT ONE}"), IDS),
        (IDS[:2], IDS),
        ((), IDS),
    ],
)
def test_other_names_stay_what_they_are(source_classes: tuple[str, ...], model_classes: tuple[str, ...]):
    source = source_of("ab", source_classes)
    assert name_numbers(source, model_classes) is source


# ReaL


@pytest.mark.parametrize("count", [1000, 100])
def test_labels_are_those_of_the_file_that_the_model_has_classes_for(count: int):
    classes = shuffled(IDS, count)
    keys = [key_of(number) for number in range(1, 50_001)]
    labels = real_labels(source_of(keys), classes)
    expected = {}
    for number, right in enumerate(REAL, start=1):
        answers = {classes.index(IDS[label]) for label in right if IDS[label] in classes}
        if answers:
            expected[key_of(number)] = answers
    assert labels == expected
    assert count < 1000 or len(labels) == 46_837


def test_images_are_known_by_their_number_in_any_folder_with_any_ending():
    keys = ["ILSVRC2012_val_00000002.JPEG", "n01440764/a/ILSVRC2012_val_00000003.jpg", "ILSVRC2012_val_00050000.webp"]
    labels = real_labels(source_of(keys), IDS)
    assert labels == {key: set(REAL[number - 1]) for key, number in zip(keys, (2, 3, 50_000), strict=True)}


def test_the_figure_of_the_whole_validation_set_is_timms():
    classes = shuffled(IDS, 1000)
    keys = [key_of(number) for number in range(1, 50_001)]
    generator = torch.Generator().manual_seed(0)
    # Each answer is one of the image's labels, or any class.
    first = torch.randint(1000, (50_000,), generator=generator)
    for row in range(0, 50_000, 3):
        if REAL[row]:
            first[row] = REAL[row][-1]
    theirs, ours = RealLabelsImagenet([f"val/{key}" for key in keys], topk=(1,)), []
    order = [IDS.index(name) for name in classes]
    for start in range(0, 50_000, 2000):
        scores = torch.nn.functional.one_hot(first[start : start + 2000], 1000).float()
        theirs.add_result(scores)
        ours.append(Answers.of(keys[start : start + 2000], torch.full((2000,), -1), scores[:, order]))
    figures = real_figures(real_labels(source_of(keys), classes), {"image": Answers.join(ours)})
    assert figures.images == 46_837
    assert 100 * figures.top1["image"] == pytest.approx(theirs.get_accuracy(1))
    assert 0.3 < figures.top1["image"] < 0.4


def test_each_rule_is_right_where_its_answer_is_among_the_labels():
    answers = {
        rule: Answers.of("abcd", torch.zeros(4, dtype=torch.int64), torch.eye(3)[first])
        for rule, first in (("one", [0, 1, 1, 2]), ("other", [2, 1, 1, 2]))
    }
    figures = real_figures({"a": {0, 1}, "b": {2}, "d": {2}}, answers)
    assert figures.images == 3
    assert figures.top1 == {"one": 2 / 3, "other": 1 / 3}


def test_no_image_with_a_label_has_no_figure():
    answers = Answers.of("ab", torch.zeros(2, dtype=torch.int64), torch.eye(2))
    figures = real_figures({"c": {1}}, {"image": answers})
    assert (figures.images, figures.top1) == (0, {"image": None})


def test_images_of_other_sets_are_refused():
    keys = ["a/ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00050001.JPEG", "ILSVRC2012_val_00000000.JPEG", "1.png"]
    assert sentence(lambda: real_labels(source_of(keys), IDS)) == (
        "ReaL labels are of ImageNet's validation set, and 3 of the 4 images of 'val' are not named as in it, such as "
        "'ILSVRC2012_val_00050001.JPEG', 'ILSVRC2012_val_00000000.JPEG', '1.png'; its names go from "
        "ILSVRC2012_val_00000001.JPEG to ILSVRC2012_val_00050000.JPEG"
    )


def test_classes_that_are_not_imagenets_are_refused():
    assert sentence(lambda: real_labels(source_of([key_of(1)]), (*IDS[:2], "cat"))) == (
        "ReaL labels are classes of ImageNet, and 1 of the model's 3 are none, such as 'cat'; --real needs a model "
        "whose classes are WordNet ids, such as 'n01440764'"
    )


def test_images_without_a_label_that_can_be_answered_are_refused():
    assert REAL[:2] == [[], [970, 795]]
    assert sentence(lambda: real_labels(source_of([key_of(1), key_of(2)]), IDS[:2])) == (
        "none of the 2 images of 'val' has a ReaL label among the model's 2 classes, such as 'n01440764', 'n01443537'"
    )
