"""Images held out of a data set."""

import pickle
from collections import Counter
from pathlib import Path

import pytest

from alltokens.data.split import hold_out
from alltokens.errors import UserError
from alltokens.sources.source import Source, open_source

from ..annotate.toys import photo, photo_folder


def named(counts: dict[str, int]) -> Source:
    """A source with so many images of each class, whose bytes are their keys."""
    keys = [f"{name}/{number}.png" for name, count in counts.items() for number in range(count)]
    labels = [list(counts).index(key.split("/")[0]) for key in keys]
    return Source("named", keys, labels, tuple(counts), lambda index: keys[index].encode())


def test_every_class_gives_its_share_and_both_parts_together_are_the_whole():
    source = named({"a": 50, "b": 10, "c": 7, "d": 2, "e": 1})
    train, held_out = hold_out(source, 0.2)
    count = Counter(key.split("/")[0] for key in held_out.keys)
    assert count == {"a": 10, "b": 2, "c": 1, "d": 1}
    assert sorted([*train.keys, *held_out.keys]) == sorted(source.keys)
    assert train.classes == held_out.classes == source.classes


def test_each_image_keeps_its_class_and_its_bytes(tmp_path: Path):
    source = open_source(str(photo_folder(tmp_path, 20)))
    whole = dict(zip(source.keys, source.labels, strict=True))
    for part in hold_out(source, 0.3):
        there = pickle.loads(pickle.dumps(part))
        for row, key in enumerate(there.keys):
            assert there.labels[row] == whole[key]
            assert there.image(row).tobytes() == photo(int(key[-7:-4]), *reversed(there.image(row).size)).tobytes()


def test_which_images_are_held_out_depends_on_the_keys_of_their_class_alone():
    _, one = hold_out(named({"a": 30, "b": 30}), 0.2)
    _, other = hold_out(named({"c": 5, "b": 30}), 0.2)
    assert [key for key in one.keys if key[0] == "b"] == [key for key in other.keys if key[0] == "b"]
    assert [key for key in one.keys if key[0] == "a"] != [f"a/{number}.png" for number in range(6)]


def test_a_data_set_with_nothing_to_spare_is_refused():
    with pytest.raises(UserError) as error:
        hold_out(named({"a": 1, "b": 1}), 0.2)
    assert str(error.value) == ("no class of 'named' has two images, so none can be held out; give validation images")
