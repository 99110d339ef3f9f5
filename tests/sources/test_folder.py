"""A folder of images: which files are taken, in which order, with which class."""

import os
import pickle
import tempfile

import pytest
from torchvision.datasets import ImageFolder

from alltokens.errors import UserError
from alltokens.sources.decode import ENDINGS, Unreadable
from alltokens.sources.source import Source, open_source

from .pictures import picture, red


def plant(root, *paths: str) -> None:
    """Pictures at these paths, each with its place in the list as its red."""
    for color, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(picture(color))


def opened(root, *paths: str) -> Source:
    plant(root, *paths)
    return open_source(str(root))


def test_first_level_folders_are_classes_and_order_is_plain(tmp_path):
    source = opened(tmp_path, "dog/b.png", "cat/10.png", "cat/2.png", "cat/deep/er/1.png", "dog/a.png")
    assert list(source.keys) == ["cat/10.png", "cat/2.png", "cat/deep/er/1.png", "dog/a.png", "dog/b.png"]
    assert list(source.labels) == [0, 0, 0, 1, 1]
    assert source.classes == ("cat", "dog")
    assert [red(source.image(index)) for index in range(len(source))] == [1, 2, 3, 4, 0]
    assert source.name == str(tmp_path)


def test_a_class_is_sorted_before_another_that_begins_with_its_name(tmp_path):
    source = opened(tmp_path, "a b/1.png", "a/1.png", "a/z.png", "a.c/1.png")
    assert list(source.keys) == ["a/1.png", "a/z.png", "a b/1.png", "a.c/1.png"]
    assert source.classes == ("a", "a b", "a.c")


def test_classes_and_images_are_those_of_torchvision(tmp_path):
    plant(
        tmp_path,
        *(f"{folder}/{name}.JPEG" for folder in ("n02", "n01", "B", "a", "é") for name in ("z", "a", "Q", "10", "9")),
    )
    source, theirs = open_source(str(tmp_path)), ImageFolder(str(tmp_path))
    assert list(source.classes) == theirs.classes
    assert [
        (str(tmp_path / key), label) for key, label in zip(source.keys, source.labels, strict=True)
    ] == theirs.samples


def test_images_in_the_root_have_no_class(tmp_path):
    source = opened(tmp_path, "b.png", "a.png")
    assert (list(source.keys), list(source.labels), source.classes) == (["a.png", "b.png"], [-1, -1], ())


def test_images_in_the_root_may_lie_beside_classes(tmp_path):
    source = opened(tmp_path, "z.png", "cat/a.png")
    assert (list(source.keys), list(source.labels), source.classes) == (["z.png", "cat/a.png"], [-1, 0], ("cat",))


def test_folders_without_images_are_no_classes(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "also" / "empty").mkdir(parents=True)
    plant(tmp_path, "cat/a.png", "notes/read.txt")
    assert open_source(str(tmp_path)).classes == ("cat",)


@pytest.mark.parametrize("ending", [*ENDINGS, *map(str.upper, ENDINGS), ".JpEg"])
def test_every_ending_of_an_image_is_taken_in_either_case(tmp_path, ending):
    assert list(opened(tmp_path, "cat/a" + ending).keys) == ["cat/a" + ending]


def test_other_files_are_left_out(tmp_path):
    source = opened(tmp_path, "cat/a.png", "cat/b.txt", "cat/png", "cat/c.png.part", "cat/d")
    assert list(source.keys) == ["cat/a.png"]


def test_hidden_files_and_folders_are_left_out(tmp_path):
    source = opened(tmp_path, "cat/a.png", "cat/._a.png", ".cache/b.png", "cat/.git/c.png", ".d.png")
    assert (list(source.keys), source.classes) == (["cat/a.png"], ("cat",))


@pytest.mark.parametrize(
    "path", ["a.b.c/d.e.png", "two words/a b.png", "Tür/猫 🐈.png", "line\nbreak/new\nline.png", "%41/#?.png"]
)
def test_unusual_names_are_kept(tmp_path, path):
    source = opened(tmp_path, path)
    assert (list(source.keys), source.classes) == ([path], (path.split("/")[0],))
    assert red(source.image(0)) == 0


def test_a_folder_with_the_ending_of_an_image_is_a_folder(tmp_path):
    assert list(opened(tmp_path, "cat.png/a.jpg/b.png").keys) == ["cat.png/a.jpg/b.png"]


def test_names_that_are_no_utf8_become_text_that_can_be_written(tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(folder)
    with open(os.path.join(folder, b"\xff.png"), "wb") as file:
        file.write(picture(9))
    source = open_source(str(tmp_path))
    assert list(source.keys) == [r"caf\xe9/\xff.png"]
    assert source.classes == (r"caf\xe9",)
    source.keys[0].encode()
    assert red(source.image(0)) == 9


def test_two_names_with_one_key_are_refused(tmp_path):
    plant(tmp_path, r"cat/\xff.png")
    with open(os.path.join(os.fsencode(tmp_path), b"cat", b"\xff.png"), "wb") as file:
        file.write(picture(9))
    with pytest.raises(UserError) as caught:
        open_source(str(tmp_path))
    assert str(caught.value) == (
        rf"'{tmp_path}' has 1 keys more than once, such as cat/\xff.png; give each image a name of its own"
    )


def test_links_to_files_and_folders_are_followed(tmp_path):
    plant(tmp_path / "elsewhere", "x/a.png", "b.png")
    (tmp_path / "data" / "cat").mkdir(parents=True)
    (tmp_path / "data" / "cat" / "b.png").symlink_to(tmp_path / "elsewhere" / "b.png")
    (tmp_path / "data" / "dog").symlink_to(tmp_path / "elsewhere" / "x")
    source = open_source(str(tmp_path / "data"))
    assert list(source.keys) == ["cat/b.png", "dog/a.png"]
    assert [red(source.image(index)) for index in range(2)] == [1, 0]


def test_a_link_to_the_folder_itself_may_be_the_data(tmp_path):
    plant(tmp_path / "real", "cat/a.png")
    (tmp_path / "link").symlink_to("real")
    assert list(open_source(str(tmp_path / "link")).keys) == ["cat/a.png"]


def test_loops_of_links_end(tmp_path):
    plant(tmp_path, "cat/a.png", "dog/b.png")
    (tmp_path / "cat" / "up").symlink_to("..")
    (tmp_path / "cat" / "self").symlink_to(".")
    (tmp_path / "cat" / "knot").symlink_to("knot")
    (tmp_path / "cat" / "other").symlink_to("../dog")
    (tmp_path / "dog" / "back").symlink_to("../cat")
    source = open_source(str(tmp_path))
    assert list(source.keys) == ["cat/a.png", "cat/other/b.png", "dog/b.png", "dog/back/a.png"]


@pytest.mark.parametrize("target", ["nowhere.png", "b.png"])
def test_a_link_that_leads_nowhere_is_listed_and_cannot_be_read(tmp_path, target):
    plant(tmp_path, "cat/a.png")
    (tmp_path / "cat" / "b.png").symlink_to(target)
    source = open_source(str(tmp_path))
    assert list(source.keys) == ["cat/a.png", "cat/b.png"]
    with pytest.raises(Unreadable, match=r"^the image cannot be read \((No such file|Too many levels).*\)$"):
        source.image(1)


def test_a_pipe_is_no_image(tmp_path):
    plant(tmp_path, "cat/a.png")
    os.mkfifo(tmp_path / "cat" / "b.png")
    (tmp_path / "cat" / "c.png").symlink_to("b.png")
    assert list(open_source(str(tmp_path)).keys) == ["cat/a.png"]


def test_a_file_that_has_gone_cannot_be_read(tmp_path):
    source = opened(tmp_path, "cat/a.png")
    (tmp_path / "cat" / "a.png").unlink()
    with pytest.raises(Unreadable, match=r"^the image cannot be read \(No such file or directory\)$"):
        source.image(0)


def test_a_relative_path_is_kept_when_the_working_folder_changes(tmp_path, monkeypatch):
    plant(tmp_path, "data/cat/a.png")
    monkeypatch.chdir(tmp_path)
    source = open_source("data")
    assert source.name == "data"
    monkeypatch.chdir("/")
    assert red(source.image(0)) == 0


def test_a_source_can_be_sent_and_is_small(tmp_path):
    plant(tmp_path, *(f"class/{number:05}.png" for number in range(200)))
    source = open_source(str(tmp_path))
    sent = pickle.dumps(source)
    # A name once, its end in 8 bytes, its label in 4.
    assert len(sent) < 200 * (len("class/00000.png") + 8 + 4) + 2000
    received = pickle.loads(sent)
    assert received == source
    assert red(received.image(7)) == 7


NONE = "there is no image in '{}'; files that end in " + ", ".join(ENDINGS) + " are taken as images"


def test_a_folder_without_an_image_is_refused(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "read.txt").touch()
    with pytest.raises(UserError) as caught:
        open_source(str(tmp_path))
    assert str(caught.value) == NONE.format(tmp_path)


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path):
    # The super-user may list anything, but nobody a path longer than the system allows.
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("x" * 250, dir_fd=here)
        deeper = os.open("x" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    with pytest.raises(
        UserError, match=r"^the folder '.*x' cannot be listed \(File name too long\); make it readable$"
    ):
        open_source(str(tmp_path))


def test_a_folder_that_belongs_to_someone_else_is_refused(tmp_path):
    opened(tmp_path, "a.png")  # everything is imported before the right to read it is given up
    user, nobody = os.geteuid(), 65534
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0)
    try:
        if user == 0:
            os.seteuid(nobody)
        with pytest.raises(UserError) as caught:
            open_source(folder)
    finally:
        os.seteuid(user)
        os.rmdir(folder)
    assert str(caught.value) == f"the folder '{folder}' cannot be listed (Permission denied); make it readable"


def test_deep_folders_are_no_trouble(tmp_path):
    path = "/".join("d" * 900) + "/a.png"
    assert list(opened(tmp_path, path).keys) == [path]
