"""What the data is stored in is told by looking at it."""

import multiprocessing
import tarfile
from array import array

import pytest
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from alltokens.errors import UserError
from alltokens.sources.decode import Unreadable
from alltokens.sources.source import Computed, Names, Source, open_source

from .pictures import picture, red


def fails(index: int) -> bytes:
    raise OSError(f"row {index} has gone")


def source_of(load, keys=("a",)) -> Source:
    return Source("here", keys, [-1] * len(keys), (), load)


def test_an_image_is_what_load_gives_decoded():
    assert red(source_of(lambda index: picture(7)).image(0)) == 7
    assert red(source_of(lambda index: Image.new("L", (1, 1), 9)).image(0)) == 9


def test_an_error_of_the_disk_makes_an_image_unreadable():
    with pytest.raises(Unreadable, match=r"^the image cannot be read \(row 0 has gone\)$"):
        source_of(fails).image(0)


def test_repeated_keys_are_refused_and_three_are_shown():
    with pytest.raises(UserError) as caught:
        source_of(fails, keys=tuple("abcdeabcd"))
    assert str(caught.value) == ("'here' has 4 keys more than once, such as a, b, c; give each image a name of its own")


def test_a_computed_sequence_is_one():
    numbers = Computed(5, str)
    assert list(numbers) == ["0", "1", "2", "3", "4"]
    assert (numbers[-1], numbers[1:3], numbers[::-2], len(numbers)) == ("4", ["1", "2"], ["4", "2", "0"], 5)
    assert "3" in numbers
    assert "5" not in numbers
    with pytest.raises(IndexError):
        numbers[5]


def test_names_come_back_as_they_were():
    names = [b"", b"a", "ü".encode(), b"\xff", b"longer name"]
    packed = Names.of(iter(names))
    assert [packed.raw(index) for index in range(5)] == names
    assert list(packed.keys()) == ["", "a", "ü", r"\xff", "longer name"]
    assert packed.ends == array("q", [0, 0, 1, 3, 4, 15])


def test_what_does_not_exist_is_refused(tmp_path):
    for data in (str(tmp_path / "nothing"), str(tmp_path / "*.tar"), ""):
        with pytest.raises(UserError) as caught:
            open_source(data)
        assert str(caught.value) == (
            f"there is no '{data}'; give a folder of images, a .tar file, a pattern such as 'shards/*.tar', "
            "a Hugging Face data set on disk, or torchvision/NAME:FOLDER"
        )


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_a_folder_or_tar_has_no_splits(tmp_path, kind):
    (tmp_path / "a.png").write_bytes(picture(1))
    data = tmp_path
    if kind == "tar":
        data = tmp_path / "images.tar"
        with tarfile.open(data, "w") as archive:
            archive.add(tmp_path / "a.png", "a.png")
    with pytest.raises(UserError) as caught:
        open_source(str(data), split="train")
    assert str(caught.value) == (
        f"'{data}' has no splits; give the path of the split's folder or file instead of 'train'"
    )


class Reds(Dataset):
    """The reds of a source's images."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> int:
        return red(self.source.image(index))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_every_image_of_a_folder_and_of_a_tar(tmp_path, start):
    (tmp_path / "folder").mkdir()
    for color in range(6):
        (tmp_path / "folder" / f"{color}.png").write_bytes(picture(color))
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        archive.add(tmp_path / "folder", ".")
    # A spawned worker takes seconds to import torch.
    with multiprocessing.get_context(start).Pool(2 if start == "fork" else 1) as pool:
        for name in ("folder", "images.tar"):
            source = open_source(str(tmp_path / name))
            assert [red(image) for image in pool.map(source.image, range(6))] == list(range(6))


def test_a_data_loader_reads_a_source(tmp_path):
    for color in range(6):
        (tmp_path / f"{color}.png").write_bytes(picture(color))
    loader = DataLoader(Reds(open_source(str(tmp_path))), batch_size=3, num_workers=2)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]
