"""Data sets of torchvision's, opened by name from what lies on disk."""

import hashlib
import pickle
import socket
import struct

import numpy as np
import pytest
from torchvision import datasets

from alltokens.errors import UserError
from alltokens.sources.decode import Unreadable
from alltokens.sources.source import open_source

from .pictures import noise, picture, red


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def asked(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", asked)


def refusal(data, split=None) -> str:
    with pytest.raises(UserError) as caught:
        open_source(data, split)
    return str(caught.value)


@pytest.fixture
def fashion(tmp_path):
    """FashionMNIST with three images to train with and two to test with, in its own layout."""
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for name, count in (("train", 3), ("t10k", 2)):
        images = noise(28, 28, count).transpose(2, 0, 1)
        sizes = np.array([2051, count, 28, 28], dtype=">i4").tobytes()
        (folder / f"{name}-images-idx3-ubyte").write_bytes(sizes + images.tobytes())
        labels = np.arange(count, dtype=np.uint8) + 7
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(
            np.array([2049, count], dtype=">i4").tobytes() + labels.tobytes()
        )
    return tmp_path


def test_fake_data_needs_no_folder():
    source, theirs = open_source("torchvision/FakeData"), datasets.FakeData()
    assert (len(source), source.keys[:3], source.keys[-1]) == (1000, ["0", "1", "2"], "999")
    assert source.classes == tuple("0123456789")
    assert source.labels[:3] == [theirs[index][1] for index in range(3)]
    assert np.array_equal(np.asarray(source.image(5)), np.asarray(theirs[5][0]))


def test_train_and_test_are_chosen_by_the_split(fashion):
    data = f"torchvision/FashionMNIST:{fashion}"
    source = open_source(data)
    assert (list(source.keys), list(source.labels)) == (["0", "1", "2"], [7, 8, 9])
    assert source.classes == tuple(datasets.FashionMNIST.classes)
    assert source.name == data
    assert np.array_equal(np.asarray(source.image(1)), noise(28, 28, 3)[..., 1:2].repeat(3, axis=2))
    assert len(open_source(data, "train")) == 3
    assert len(open_source(data, "test")) == 2
    assert refusal(data, "val") == "torchvision's FashionMNIST has no split 'val'; it has train, test"


def test_rows_are_known_by_their_split_and_classes(fashion, imagenette):
    data = f"torchvision/FashionMNIST:{fashion}"
    sources = [open_source(data, split) for split in (None, "train", "test")]
    assert [source.split for source in sources] == ["train", "train", "test"]
    assert sources[0].labels_sha256 == hashlib.sha256(struct.pack("<3i", 7, 8, 9)).hexdigest()
    assert sources[2].labels_sha256 == hashlib.sha256(struct.pack("<2i", 7, 8)).hexdigest()
    data = f"torchvision/Imagenette:{imagenette}"
    assert [open_source(data, split).split for split in (None, "train", "val")] == ["train", "train", "val"]


def test_classes_that_are_known_only_with_the_images_are_not_read_for_it():
    source = open_source("torchvision/FakeData")
    assert (source.split, source.labels_sha256) == ("", "")


def test_a_source_can_be_sent(fashion):
    source = pickle.loads(pickle.dumps(open_source(f"torchvision/FashionMNIST:{fashion}")))
    assert np.array_equal(np.asarray(source.image(1)), noise(28, 28, 3)[..., 1:2].repeat(3, axis=2))


@pytest.fixture
def imagenette(tmp_path):
    for split, color in (("train", 1), ("val", 2)):
        for wordnet_id in ("n01440764", "n02102040"):
            folder = tmp_path / "imagenette2" / split / wordnet_id
            folder.mkdir(parents=True)
            (folder / "a.JPEG").write_bytes(picture(color))
    return tmp_path


def test_a_split_goes_by_the_data_sets_own_names(imagenette):
    data = f"torchvision/Imagenette:{imagenette}"
    assert [red(open_source(data, split).image(0)) for split in (None, "train", "val")] == [1, 1, 2]
    assert refusal(data, "test") == "torchvision's Imagenette has no split 'test'; it has train, val"


def test_classes_are_wordnet_ids_where_there_are_any(imagenette):
    source = open_source(f"torchvision/Imagenette:{imagenette}")
    assert (list(source.labels), source.classes) == ([0, 1], ("n01440764", "n02102040"))


def test_a_folder_of_images_may_go_through_torchvision(imagenette):
    source = open_source(f"torchvision/ImageFolder:{imagenette}/imagenette2")
    assert (list(source.labels), source.classes) == ([0, 0, 1, 1], ("train", "val"))
    assert refusal(f"torchvision/ImageFolder:{imagenette}/imagenette2", "train") == (
        "torchvision's ImageFolder has no splits; leave out 'train'"
    )


def test_an_image_that_torchvision_cannot_read_is_unreadable(imagenette):
    source = open_source(f"torchvision/Imagenette:{imagenette}")
    damaged = imagenette / "imagenette2" / "train" / "n02102040" / "a.JPEG"
    damaged.write_bytes(b"no image")
    with pytest.raises(Unreadable, match=r"^the image is damaged or not one of JPEG, .*$"):
        source.image(1)
    damaged.unlink()
    with pytest.raises(Unreadable, match=r"^the image cannot be decoded .*No such file"):
        source.image(1)


def test_an_unknown_name_is_refused_with_a_suggestion():
    assert refusal("torchvision/CIFAR1O:data") == (
        "torchvision has no data set 'CIFAR1O'; did you mean CIFAR10, CIFAR100?"
    )
    assert refusal("torchvision/qqqqqq:data") == "torchvision has no data set 'qqqqqq'"


def test_what_is_in_torchvision_but_no_data_set_is_refused():
    assert refusal("torchvision/wrap_dataset_for_transforms_v2:data").startswith(
        "torchvision has no data set 'wrap_dataset_for_transforms_v2'"
    )


def test_a_folder_is_needed_or_not():
    assert refusal("torchvision/CIFAR10") == "torchvision's CIFAR10 takes a folder; write torchvision/CIFAR10:FOLDER"
    assert refusal("torchvision/FakeData:data") == "torchvision's FakeData takes no folder; write torchvision/FakeData"


@pytest.mark.parametrize(
    "name", ["CIFAR10", "MNIST", "SVHN", "SEMEION", "USPS", "STL10", "Food101", "EuroSAT", "GTSRB"]
)
def test_data_that_is_not_there_is_refused_and_not_downloaded(tmp_path, name):
    sentence = refusal(f"torchvision/{name}:{tmp_path}")
    assert sentence.startswith(f"torchvision cannot open 'torchvision/{name}:{tmp_path}' (")
    assert sentence.endswith("); download the data set first, nothing is downloaded here")
    assert "download=True" not in sentence
    assert "\n" not in sentence


def test_a_split_without_which_nothing_opens_is_asked_for(tmp_path):
    assert refusal(f"torchvision/EMNIST:{tmp_path}") == "torchvision's EMNIST needs a split; give the name of one"


def test_a_data_set_that_needs_more_is_refused(tmp_path):
    assert refusal(f"torchvision/CocoDetection:{tmp_path}") == (
        "torchvision's CocoDetection needs annFile too, so it cannot be opened by a name alone"
    )


def test_a_data_set_without_classes_is_refused(tmp_path):
    folder = tmp_path / "VOCdevkit" / "VOC2012"
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    (folder / "JPEGImages" / "a.jpg").write_bytes(picture(1))
    (folder / "Annotations" / "a.xml").write_text("<annotation><object/></annotation>")
    (folder / "ImageSets" / "Main" / "train.txt").write_text("a\n")
    assert refusal(f"torchvision/VOCDetection:{tmp_path}") == (
        "torchvision's VOCDetection is no data set of images and classes: it gives Image, dict"
    )
