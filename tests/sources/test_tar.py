"""Images in tar files: found once, read where they lie, classes from WebDataset's members or from folders."""

import gzip
import io
import json
import os
import pickle
import random
import tarfile
from collections.abc import Mapping

import pytest

from alltokens.errors import UserError
from alltokens.sources.decode import ENDINGS, Unreadable
from alltokens.sources.source import Source, open_source
from alltokens.sources.tar import LARGEST_CLASS

from .pictures import encoded, noise, picture, red


def packed(path, members: Mapping[str, bytes | str], format: int = tarfile.PAX_FORMAT) -> str:
    """A tar of these members."""
    with tarfile.open(path, "w", format=format) as archive:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return str(path)


def opened(path, members: Mapping[str, bytes | str]) -> Source:
    return open_source(packed(path, members))


def reds(source: Source) -> list[int]:
    return [red(source.image(index)) for index in range(len(source))]


def refusal(data) -> str:
    with pytest.raises(UserError) as caught:
        open_source(str(data))
    return str(caught.value)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "images.tar"


def test_keys_are_member_paths_in_the_order_of_the_tar(path):
    source = opened(path, {"dog/b.png": picture(3), "cat/deep/a.PNG": picture(4), "dog/a.png": picture(5)})
    assert list(source.keys) == ["dog/b.png", "cat/deep/a.PNG", "dog/a.png"]
    assert (list(source.labels), source.classes) == ([1, 0, 1], ("cat", "dog"))
    assert reds(source) == [3, 4, 5]


def test_members_are_the_bytes_that_tarfile_extracts(path):
    members = {f"{index}.jpg": encoded(noise(20 + index, 20), "JPEG") for index in range(20)}
    source = opened(path, members)
    with tarfile.open(path) as archive:
        order = random.Random(0).sample(range(20), 20)
        assert [source.load(index) for index in order] == [
            archive.extractfile(f"{index}.jpg").read() for index in order
        ]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["a b.png", "ü/猫.png", "x" * 90 + "/" + "y" * 90 + ".png", "line\nbreak.png"])
def test_every_layout_and_name_is_read(path, format, name):
    source = open_source(packed(path, {name: picture(3), "z.png": picture(4)}, format))
    assert list(source.keys) == [name, "z.png"]
    assert reds(source) == [3, 4]


def test_a_very_long_name_is_read(path):
    name = "/".join(["folder" * 10] * 20) + "/a.png"
    assert list(opened(path, {name: picture(1)}).keys) == [name]


def test_a_name_that_is_no_utf8_becomes_text_that_can_be_written(path):
    source = open_source(packed(path, {"caf\udce9/a.png": picture(1)}, tarfile.GNU_FORMAT))
    assert (list(source.keys), source.classes) == ([r"caf\xe9/a.png"], (r"caf\xe9",))


def test_a_leading_dot_is_no_folder(path):
    source = opened(path, {"./cat/a.png": picture(1), "./b.png": picture(2), "/dog//c.png": picture(3)})
    assert list(source.keys) == ["cat/a.png", "b.png", "dog/c.png"]
    assert (list(source.labels), source.classes) == ([0, -1, 1], ("cat", "dog"))


def test_hidden_members_and_other_files_are_left_out(path):
    members = dict.fromkeys(["cat/._a.png", ".git/a.png", "../b.png", "cat/a.txt", "cat/a.png"], picture(1))
    assert list(opened(path, members).keys) == ["cat/a.png"]


def test_links_folders_devices_and_sparse_members_are_left_out(path):
    with tarfile.open(path, "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo(f"kind{kind.decode()}.png")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        sparse = tarfile.TarInfo("sparse.png")
        sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}
        content = b"1\n0\n9\n".ljust(512, b"\0") + bytes(9)
        sparse.size = len(content)
        archive.addfile(sparse, io.BytesIO(content))
        image = tarfile.TarInfo("a.png")
        image.size = len(picture(5))
        archive.addfile(image, io.BytesIO(picture(5)))
    source = open_source(str(path))
    assert list(source.keys) == ["a.png"]
    assert reds(source) == [5]


def test_nothing_is_unpacked(path, tmp_path):
    source = opened(path, {"cat/a.png": picture(1), "../../escape.png": picture(2)})
    reds(source)
    assert os.listdir(tmp_path) == ["images.tar"]


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    packed(folder / "b-1.tar", {"cat/x.png": picture(1), "y.png": picture(2)})
    packed(folder / "a.0.tar", {"dog/x.png": picture(3)})
    return folder


@pytest.mark.parametrize("pattern", ["", "/*.tar", "/?*-*.tar", "/../*/*.tar"])
def test_shards_put_their_name_before_the_keys(shards, pattern):
    source = open_source(str(shards) + pattern)
    if pattern == "/?*-*.tar":
        assert list(source.keys) == ["b-1/cat/x.png", "b-1/y.png"]
        return
    assert list(source.keys) == ["a.0/dog/x.png", "b-1/cat/x.png", "b-1/y.png"]
    assert (list(source.labels), source.classes) == ([1, 0, -1], ("cat", "dog"))
    assert reds(source) == [3, 1, 2]


def test_a_folder_of_shards_may_hold_a_note_and_hidden_files(shards):
    (shards / "README.md").touch()
    (shards / ".index").mkdir()
    assert len(open_source(str(shards))) == 3


def test_images_or_class_folders_beside_a_tar_make_an_image_folder(shards):
    (shards / "cat").mkdir()
    (shards / "cat" / "a.png").write_bytes(picture(1))
    assert list(open_source(str(shards)).keys) == ["cat/a.png"]


def test_a_tar_whose_name_looks_like_a_pattern_is_a_tar(tmp_path):
    assert list(opened(tmp_path / "images[1].tar", {"a.png": picture(1)}).keys) == ["a.png"]


def test_repeated_keys_are_refused(path, tmp_path):
    with tarfile.open(path, "w") as archive:
        for name in [*"abcd", *"abcde"]:
            member = tarfile.TarInfo(f"{name}.png")
            member.size = len(picture(1))
            archive.addfile(member, io.BytesIO(picture(1)))
    assert refusal(path) == (
        f"'{path}' has 4 keys more than once, such as a.png, b.png, c.png; give each image a name of its own"
    )


def test_shards_of_one_name_in_two_folders_are_refused(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        packed(tmp_path / folder / "x.tar", {"1.png": picture(1)})
    pattern = f"{tmp_path}/*/x.tar"
    assert (
        refusal(pattern) == f"'{pattern}' has 1 keys more than once, such as x/1.png; give each image a name of its own"
    )


def test_numbers_of_webdataset_are_classes(path):
    members = {
        "0.cls": "2",
        "0.png": picture(1),
        "1.png": picture(2),
        "1.cls": " 0\n",
        "2.png": picture(3),
        "3.cls": "-1",
        "3.png": picture(4),
    }
    source = opened(path, members)
    assert list(source.keys) == ["0.png", "1.png", "2.png", "3.png"]
    assert (list(source.labels), source.classes) == ([2, 0, -1, -1], ("0", "1", "2"))


def test_texts_of_webdataset_are_classes(path):
    source = opened(
        path,
        {
            "a.png": picture(1),
            "a.cls": "tench",
            "b.png": picture(2),
            "b.cls": "Hahn ü",
            "c.png": picture(3),
            "c.cls": "7",
        },
    )
    assert (list(source.labels), source.classes) == ([2, 1, 0], ("7", "Hahn ü", "tench"))


def test_a_sample_is_named_by_all_before_the_first_dot_of_its_file_name(path):
    members = {"v1.0/a.input.png": picture(1), "v1.0/a.cls": "1", "v1.0/b.png": picture(2), "v2.0/a.cls": "0"}
    source = opened(path, members)
    assert (list(source.keys), list(source.labels)) == (["v1.0/a.input.png", "v1.0/b.png"], [1, -1])


def test_samples_of_one_name_in_two_shards_keep_their_own_class(tmp_path):
    for shard in (0, 1):
        packed(tmp_path / f"{shard}.tar", {"a.png": picture(shard), "a.cls": str(shard)})
    assert list(open_source(str(tmp_path)).labels) == [0, 1]


@pytest.mark.parametrize("name", ["label", "cls"])
def test_a_class_may_stand_in_json(path, name):
    members = {}
    for number, value in enumerate([3, "1", None, True, 0.5]):
        members |= {f"{number}.png": picture(number), f"{number}.json": json.dumps({name: value, "width": 9})}
    source = opened(path, members)
    assert (list(source.labels), source.classes) == ([3, 1, -1, -1, -1], ("0", "1", "2", "3"))


@pytest.mark.parametrize("order", [1, -1])
def test_a_member_for_the_class_is_preferred_to_json(path, order):
    members = {"a.png": picture(1), "a.cls": "1", "a.json": '{"label": 2}'}
    assert list(opened(path, dict(list(members.items())[::order])).labels) == [1]


@pytest.mark.parametrize("content", ["{", "[1]", "7", "[" * 100000, b"\xff", '{"label": {"deep": 1}}', "{}"])
def test_json_without_a_class_leaves_the_folder_as_the_class(path, content):
    source = opened(path, {"cat/a.png": picture(1), "cat/a.json": content})
    assert (list(source.labels), source.classes) == ([0], ("cat",))


@pytest.mark.parametrize("number", [-2, LARGEST_CLASS, 10**15])
def test_a_number_that_is_no_class_is_refused(path, number):
    packed(path, {"a.png": picture(1), "a.cls": str(number), "b.png": picture(2), "b.cls": "0"})
    assert refusal(path) == (
        f"'{path}' has an image of class {number}; class numbers go from 0 to 16777215, and -1 stands for no class"
    )


def test_a_very_long_number_is_a_text(path):
    assert opened(path, {"a.png": picture(1), "a.cls": "1" * 5000}).classes == ("1" * 5000,)


def test_only_a_large_member_is_not_taken_for_a_class(path):
    assert opened(path, {"cat/a.png": picture(1), "cat/a.cls": "1" * (2**20 + 1)}).classes == ("cat",)


@pytest.mark.parametrize(
    ("kind", "name"), [("gzip", "x.tar.gz"), ("gzip", "x.tar"), ("bzip2", "x.tar.bz2"), ("xz", "x.tar.xz")]
)
def test_a_compressed_tar_is_refused(tmp_path, kind, name):
    with tarfile.open(tmp_path / name, {"gzip": "w:gz", "bzip2": "w:bz2", "xz": "w:xz"}[kind]) as archive:
        archive.addfile(tarfile.TarInfo("a.png"))
    sentence = (
        f"'{tmp_path / name}' is compressed with {kind}, so single images cannot be read from it; decompress it first"
    )
    assert refusal(tmp_path / name) == sentence
    assert refusal(tmp_path) == sentence
    assert refusal(f"{tmp_path}/*") == sentence


def test_a_tar_compressed_with_zstd_is_refused(tmp_path):
    (tmp_path / "x.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    assert "is compressed with zstd" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"x" * 5000, picture(1), gzip.compress(b"x", mtime=0)[2:]])
def test_a_file_that_is_no_tar_is_refused(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    sentence = refusal(path)
    assert sentence.startswith(f"'{path}' is damaged or no tar (")
    assert sentence.endswith("); give a folder of images or tar files")
    assert "\n" not in sentence


def test_a_tar_without_an_image_is_refused(path):
    packed(path, {"a.txt": "a"})
    assert refusal(path) == f"there is no image in '{path}'; files that end in {', '.join(ENDINGS)} are taken as images"
    packed(path, {})
    assert refusal(path).startswith(f"there is no image in '{path}'")


# The members are 512 bytes of header and 512 of content each; the end is two blocks of zeros, filled up to 10240 bytes.
@pytest.mark.parametrize("keep", [100, 512, 600, 1023, 1024, 1100, 1536, 2000, 2048, 2500])
def test_a_truncated_tar_is_refused(path, keep):
    packed(path, {"a.png": picture(1), "b.png": picture(2)})
    path.write_bytes(path.read_bytes()[:keep])
    sentence = refusal(path)
    assert sentence in (
        f"'{path}' is truncated, damaged or several tars in one file; make it again",
        f"'{path}' is damaged or no tar (unexpected end of data); give a folder of images or tar files",
        f"'{path}' is damaged or no tar (truncated header); give a folder of images or tar files",
    )


def test_a_damaged_header_is_refused(path):
    packed(path, {"a.png": picture(1), "b.png": picture(2)})
    content = bytearray(path.read_bytes())
    content[1024] ^= 1
    path.write_bytes(content)
    assert refusal(path) == f"'{path}' is truncated, damaged or several tars in one file; make it again"


def test_two_tars_in_one_file_are_refused(path):
    packed(path, {"a.png": picture(1)})
    path.write_bytes(path.read_bytes() * 2)
    assert refusal(path) == f"'{path}' is truncated, damaged or several tars in one file; make it again"


def test_a_member_of_negative_size_does_not_go_round_for_ever(path):
    packed(path, {"a.png": picture(1), "b.png": picture(2)})
    content = bytearray(path.read_bytes())
    content[1024 + 124 : 1024 + 136] = (-1024).to_bytes(12, "big", signed=True)
    header = content[1024:1536]
    header[148:156] = b" " * 8
    content[1024 + 148 : 1024 + 156] = f"{sum(header):06o}\0 ".encode()
    path.write_bytes(content)
    assert refusal(path) == (
        f"'{path}' is damaged or no tar (a member of negative size at byte 1024); give a folder of images or tar files"
    )


def test_corrupted_tars_are_refused_or_read_and_nothing_else(path):
    packed(path, {"a.png": picture(1), "ü" * 99 + ".png": picture(2), "a.cls": "1"})
    whole = path.read_bytes()
    draw = random.Random(0)
    refused = 0
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(512 * 6)] = draw.randrange(256)
        path.write_bytes(content)
        try:
            source = open_source(str(path))
            for index in range(len(source)):
                source.image(index)
        except (UserError, Unreadable):
            refused += 1
    assert 0 < refused < 300


def test_a_tar_that_has_become_shorter_cannot_be_read(path):
    source = opened(path, {"a.png": picture(1)})
    path.write_bytes(path.read_bytes()[:520])
    with pytest.raises(Unreadable) as caught:
        source.image(0)
    assert str(caught.value) == f"the image cannot be read ('{path}' has become shorter)"


def test_a_source_can_be_sent_and_is_small(path):
    source = opened(path, {f"class/{number:05}.png": picture(number) for number in range(200)})
    sent = pickle.dumps(source)
    # A name once, its end, offset and size in 8 bytes each, its tar and label in 4.
    assert len(sent) < 200 * (len("class/00000.png") + 3 * 8 + 2 * 4) + 2000
    assert reds(pickle.loads(sent)) == list(range(200))
