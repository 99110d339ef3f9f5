"""Hugging Face data sets on disk: saved ones and parquet files, one split at a time, without a network."""

import hashlib
import os
import pickle
import socket
import struct
import sys

import pytest

from alltokens.errors import UserError
from alltokens.sources.decode import Unreadable
from alltokens.sources.source import open_source

from .pictures import picture, red

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path_factory):
    """No network, and a cache of its own."""

    def no_network(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def rows(colors, names=("cat", "dog"), **columns):
    """A data set of pictures whose class is their red modulo the number of names."""
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))}
    data = {
        "image": [{"bytes": picture(color), "path": None} for color in colors],
        "label": [color % len(names) for color in colors],
    }
    for name, (feature, values) in columns.items():
        features[name], data[name] = feature, values
    return datasets.Dataset.from_dict(data, features=datasets.Features(features))


def reds(source):
    return [red(source.image(index)) for index in range(len(source))]


def refusal(data, split=None) -> str:
    with pytest.raises(UserError) as caught:
        open_source(str(data), split)
    return str(caught.value)


@pytest.fixture(params=["saved", "parquet", "parquet in data"])
def splits(request, tmp_path):
    """A folder with the splits train, in two files where it is parquet, and test."""
    folder = tmp_path / "animals"
    if request.param == "saved":
        datasets.DatasetDict({"train": rows([1, 2, 3]), "test": rows([4])}).save_to_disk(folder)
        return folder
    inside = folder / "data" if request.param.endswith("data") else folder
    inside.mkdir(parents=True)
    rows([1, 2]).to_parquet(inside / "train-00000-of-00002.parquet")
    rows([3]).to_parquet(inside / "train-00001-of-00002-a0b1.parquet")
    rows([4]).to_parquet(inside / "test-00000-of-00001.parquet")
    return folder


def test_a_split_is_opened_by_its_name(splits):
    source = open_source(str(splits), "train")
    assert list(source.keys) == ["0", "1", "2"]
    assert (list(source.labels), source.classes) == ([1, 0, 1], ("cat", "dog"))
    assert reds(source) == [1, 2, 3]
    assert reds(open_source(str(splits), "test")) == [4]


def test_rows_are_known_by_their_split_and_classes(splits):
    train, test = (open_source(str(splits), split) for split in ("train", "test"))
    assert (train.split, test.split) == ("train", "test")
    assert train.labels_sha256 == hashlib.sha256(struct.pack("<3i", 1, 0, 1)).hexdigest()
    assert test.labels_sha256 == hashlib.sha256(struct.pack("<i", 0)).hexdigest()


def test_the_decoder_sees_the_bytes_as_they_are_stored(splits):
    assert open_source(str(splits), "test").load(0) == picture(4)


def test_a_missing_or_wrong_split_is_refused_with_those_there(splits):
    assert refusal(splits) == f"'{splits}' has the splits test, train; choose one of them"
    assert refusal(splits, "val") == f"'{splits}' has no split 'val'; it has test, train"


def test_a_source_can_be_sent(splits):
    assert reds(pickle.loads(pickle.dumps(open_source(str(splits), "train")))) == [1, 2, 3]


def test_the_only_split_is_taken(tmp_path):
    datasets.DatasetDict({"train": rows([5])}).save_to_disk(tmp_path / "saved")
    (tmp_path / "files").mkdir()
    rows([5]).to_parquet(tmp_path / "files" / "train.parquet")
    assert reds(open_source(str(tmp_path / "saved"))) == reds(open_source(str(tmp_path / "files"))) == [5]
    assert refusal(tmp_path / "files", "test") == f"'{tmp_path / 'files'}' has no split 'test'; it has train"


def test_numbered_files_are_the_split_of_their_folder(tmp_path):
    (tmp_path / "train").mkdir()
    for number in (0, 1):
        rows([number]).to_parquet(tmp_path / "train" / f"000{number}.parquet")
    assert reds(open_source(str(tmp_path / "train"), "train")) == [0, 1]


def test_a_data_set_saved_without_splits_takes_none(tmp_path):
    rows([1, 2]).save_to_disk(tmp_path)
    assert reds(open_source(str(tmp_path))) == [1, 2]
    assert open_source(str(tmp_path)).split == ""
    assert (
        refusal(tmp_path, "train") == f"'{tmp_path}' has no splits; it was saved as one data set, so leave out 'train'"
    )


def test_one_split_saved_alone_keeps_its_name(tmp_path):
    (tmp_path / "files").mkdir()
    rows([6]).to_parquet(tmp_path / "files" / "train.parquet")
    one = datasets.Dataset.from_parquet(str(tmp_path / "files" / "train.parquet"), split="train")
    one.save_to_disk(tmp_path / "saved")
    assert reds(open_source(str(tmp_path / "saved"))) == reds(open_source(str(tmp_path / "saved"), "train")) == [6]
    assert open_source(str(tmp_path / "saved")).split == "train"
    assert refusal(tmp_path / "saved", "test") == f"'{tmp_path / 'saved'}' has no split 'test'; it has train"


def test_a_selection_of_rows_keeps_its_order(tmp_path):
    rows([1, 2, 3, 4]).select([3, 0]).save_to_disk(tmp_path)
    source = open_source(str(tmp_path))
    assert (reds(source), list(source.labels)) == ([4, 1], [0, 1])


def test_a_format_that_was_saved_with_the_rows_changes_nothing(tmp_path):
    rows([1, 2]).with_format("numpy", columns=["label"]).save_to_disk(tmp_path)
    source = open_source(str(tmp_path))
    assert (reds(source), list(source.labels)) == ([1, 2], [1, 0])


def test_images_are_found_by_their_type(tmp_path):
    rows([1, 2]).rename_columns({"image": "img", "label": "class"}).save_to_disk(tmp_path)
    source = open_source(str(tmp_path))
    assert (reds(source), list(source.labels)) == ([1, 2], [1, 0])


def test_of_several_image_columns_the_one_called_image_is_taken(tmp_path):
    mask = (datasets.Image(), [{"bytes": picture(9), "path": None}])
    rows([1], mask=mask).save_to_disk(tmp_path / "a")
    assert reds(open_source(str(tmp_path / "a"))) == [1]
    rows([1], mask=mask).rename_column("image", "photo").save_to_disk(tmp_path / "b")
    assert refusal(tmp_path / "b") == (
        f"'{tmp_path / 'b'}' has the image columns photo, mask; rename the one to use to 'image'"
    )


def test_of_several_class_columns_the_finest_is_taken_unless_one_is_called_label(tmp_path):
    fine = (datasets.ClassLabel(names=["a", "b", "c"]), [2])
    rows([1], fine=fine).save_to_disk(tmp_path / "a")
    assert open_source(str(tmp_path / "a")).classes == ("cat", "dog")
    rows([1], fine=fine).rename_column("label", "coarse").save_to_disk(tmp_path / "b")
    source = open_source(str(tmp_path / "b"))
    assert (list(source.labels), source.classes) == ([2], ("a", "b", "c"))


def test_without_a_class_column_there_are_no_classes(tmp_path):
    rows([1, 2]).remove_columns("label").save_to_disk(tmp_path)
    source = open_source(str(tmp_path))
    assert (list(source.labels), source.classes) == ([-1, -1], ())


@pytest.mark.parametrize(
    ("kind", "stated", "classes"), [("string", ["b", None, "a"], "ab"), ("int64", [7, -1, 3], "37")]
)
def test_names_or_numbers_in_a_column_called_label_are_classes(tmp_path, kind, stated, classes):
    given = rows([1, 2, 3]).remove_columns("label")
    given.add_column("label", stated, feature=datasets.Value(kind)).save_to_disk(tmp_path)
    source = open_source(str(tmp_path))
    assert source.classes == tuple(classes)
    assert list(source.labels) == [1, -1, 0]


def test_a_row_without_a_class_or_image_has_none(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat"])})
    datasets.Dataset.from_dict({"image": [None], "label": [None]}, features=features).save_to_disk(tmp_path)
    source = open_source(str(tmp_path))
    assert list(source.labels) == [-1]
    with pytest.raises(Unreadable, match=r"^the image cannot be read \(the row has no image\)$"):
        source.image(0)


def test_an_image_that_is_only_named_is_read_from_its_file_within_the_folder(tmp_path):
    outside = tmp_path / "b.png"
    outside.write_bytes(picture(9))
    inside = ["images/a.png", str(tmp_path / "data" / "images" / "a.png")]
    paths = [*inside, "hf://datasets/a/b.png", str(outside), "../b.png", "images/link.png"]
    image = pyarrow.array([{"bytes": None, "path": path} for path in paths], datasets.Image().pa_type)
    features = datasets.Features({"image": datasets.Image()})
    (tmp_path / "data" / "images").mkdir(parents=True)
    (tmp_path / "data" / "images" / "a.png").write_bytes(picture(8))
    (tmp_path / "data" / "images" / "link.png").symlink_to(outside)
    # `datasets` itself would put the files' bytes in, or look for them on the Hub.
    pyarrow.parquet.write_table(
        pyarrow.table({"image": image}, schema=features.arrow_schema), tmp_path / "data" / "train.parquet"
    )
    source = open_source(str(tmp_path / "data"))
    assert red(source.image(0)) == red(source.image(1)) == 8
    with pytest.raises(Unreadable, match=r"^the image cannot be read \(No such file or directory\)$"):
        source.image(2)
    for index in (3, 4, 5):
        with pytest.raises(Unreadable, match=r"^the image cannot be read \(its file lies outside of the data set's "):
            source.image(index)


def test_a_data_set_without_images_is_refused(tmp_path):
    datasets.Dataset.from_dict({"text": ["a"], "n": [1]}).save_to_disk(tmp_path)
    assert refusal(tmp_path) == f"'{tmp_path}' has no image column; its columns are text, n"


def test_damaged_files_are_refused(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1 no parquet")
    sentence = refusal(tmp_path)
    assert sentence.startswith(f"'{tmp_path}' cannot be read as a Hugging Face data set (")
    assert sentence.endswith("); download it again")


def test_a_damaged_saved_data_set_is_refused(tmp_path):
    rows([1]).save_to_disk(tmp_path)
    (tmp_path / "state.json").write_text("{")
    assert refusal(tmp_path).startswith(f"'{tmp_path}' cannot be read as a Hugging Face data set (")


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    rows([1]).save_to_disk(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert refusal(tmp_path) == (
        f"'{tmp_path}' needs the package datasets; install it with: pip install 'alltokens[datasets]'"
    )


def test_a_folder_whose_name_looks_like_a_pattern_is_opened(tmp_path):
    folder = tmp_path / "a[1]"
    folder.mkdir()
    rows([3]).to_parquet(os.path.join(folder, "train.parquet"))
    assert reds(open_source(str(folder))) == [3]
