"""Classes of an annotator: their names, and groups of them as the classes of a data set."""

import json
import math

import pytest
import torch
from timm.data import ImageNetInfo

from alltokens.annotate.class_map import ClassMap, class_names, describe_class, read_class_map
from alltokens.errors import UserError

IMAGENET = class_names(1000)
TENCH, GOLDFISH, HEN = "n01440764", "n01443537", "n01514859"
BIRD, MACHINE = "n02012849", "n03126707"
"""Both are cranes."""


@pytest.mark.parametrize("subset", ["1k", "12k", "22k", "21k-goog", "21k-miil", "22k-ms"])
def test_imagenets_classes_are_wordnet_ids_with_words(subset):
    known = ImageNetInfo(f"imagenet-{subset}")
    names = class_names(known.num_classes())
    assert list(names) == known.label_names()
    assert len(set(names)) == len(names)
    assert [describe_class(name) for name in names] == known.label_descriptions()


def test_other_classes_are_numbers_and_stand_for_themselves():
    assert class_names(3) == ("0", "1", "2")
    assert describe_class("2") == "2"
    assert describe_class("daisy field") == "daisy field"


def written(folder, text: str, name: str = "map.csv"):
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def pairs_of(class_map: ClassMap, annotator_classes=IMAGENET) -> dict[str, str]:
    """What the map says, by name."""
    assert len(class_map.target) == len(annotator_classes)
    named = zip(annotator_classes, class_map.target, strict=True)
    return {name: class_map.classes[group] for name, group in named if group >= 0}


FISH = {TENCH: "fish", GOLDFISH: "fish", HEN: "bird"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("map.json", json.dumps(FISH)),
        ("map.txt", json.dumps(FISH, indent=2)),
        ("map.csv", f"{TENCH},fish\n{GOLDFISH},fish\n{HEN},bird\n"),
        ("map.csv", f"annotator,dataset\r\n{TENCH}, fish\r\n\r\n{GOLDFISH},fish\r\n{HEN},bird"),
        ("map.csv", f"\ufeffannotator,dataset\n{TENCH},fish\n{GOLDFISH},fish\n{HEN},bird\n"),
        ("map.tsv", f"annotator\tdataset\n{TENCH}\tfish\n{GOLDFISH}\tfish\n{HEN}\tbird\n"),
        ("map.csv", f"0,fish\n1,fish\n8,bird\n{TENCH},fish\n"),
        ("map.csv", 'tench,fish\n"goldfish, Carassius auratus",fish\nHEN,bird\n'),
        ("map.tsv", "Tinca  tinca\tfish\nCarassius auratus\tfish\nhen\tbird\n"),
    ],
    ids=["json", "json by content", "csv", "header", "mark", "tsv", "numbers", "words", "other words"],
)
def test_a_map_is_read_in_any_of_its_layouts(name, text, tmp_path):
    class_map = read_class_map(written(tmp_path, text, name), IMAGENET)
    assert class_map.classes == ("bird", "fish")
    assert pairs_of(class_map) == FISH


def test_the_data_sets_classes_are_sorted_as_folders_are(tmp_path):
    class_map = read_class_map(written(tmp_path, "0,b\n1,B\n2,a10\n3,a9\n"), IMAGENET)
    assert class_map.classes == ("B", "a10", "a9", "b")


def test_classes_without_words_are_found_by_number(tmp_path):
    class_map = read_class_map(written(tmp_path, "2,x\n0,y\n"), ("0", "1", "2"))
    assert class_map == ClassMap(classes=("x", "y"), target=(1, -1, 0))


def refused(path, sentence: str, classes=IMAGENET) -> None:
    with pytest.raises(UserError) as caught:
        read_class_map(path, classes)
    assert str(caught.value) == sentence


def test_an_unknown_class_is_named_with_its_line_and_the_closest(tmp_path):
    path = written(tmp_path, f"annotator,dataset\n{TENCH},fish\ngoldfsh,fish\n")
    refused(
        path, f"'{path}', line 3: the annotator has no class 'goldfsh'; did you mean goldfish, goldfinch, globefish?"
    )
    path = written(tmp_path, '{"0": "fish", "n0144353": "fish"}')
    with pytest.raises(UserError, match=r", entry 2: the annotator has no class 'n0144353'; did you mean n01443537, "):
        read_class_map(path, IMAGENET)
    path = written(tmp_path, "7,fish\n")
    refused(path, f"'{path}', line 1: the annotator has no class '7'", classes=("0", "1"))


def test_words_of_several_classes_are_refused(tmp_path):
    path = written(tmp_path, "crane,thing\n")
    choices = " or ".join(f"{name} ({describe_class(name)})" for name in (BIRD, MACHINE))
    refused(path, f"'{path}', line 1: 'crane' may be {choices}; give the id")
    by_id = written(tmp_path, f"{BIRD},animal\n{MACHINE},thing\n")
    assert pairs_of(read_class_map(by_id, IMAGENET)) == {BIRD: "animal", MACHINE: "thing"}


@pytest.mark.parametrize(
    ("text", "place"), [("tench,fish\n0,food\n", "line 2"), ('{"tench": "fish", "0": "food"}', "entry 2")]
)
def test_a_class_with_two_targets_is_refused(text, place, tmp_path):
    path = written(tmp_path, text)
    refused(
        path,
        f"'{path}', {place}: '0' becomes 'food', but it became 'fish' before; "
        "an annotator's class has one class of the data set",
    )


def test_a_json_key_that_stands_twice_is_seen(tmp_path):
    with pytest.raises(UserError, match=r", entry 2: 'tench' becomes 'food', but it became 'fish' before; "):
        read_class_map(written(tmp_path, '{"tench": "fish", "tench": "food"}'), IMAGENET)


@pytest.mark.parametrize("text", ["", "\n\n", "annotator,dataset\n", "{}"])
def test_an_empty_map_is_refused(text, tmp_path):
    path = written(tmp_path, text)
    refused(path, f"'{path}' maps no class; give pairs of an annotator's class and a data set's class")


def test_text_that_is_no_json_is_refused(tmp_path):
    path = written(tmp_path, '{"0": "fish",', "map.json")
    with pytest.raises(UserError, match=r"' is not JSON \(.+ line 1 column .+\); a class map is an object or a table"):
        read_class_map(path, IMAGENET)
    path = written(tmp_path, '["0", "fish"]', "map.json")
    refused(path, f"'{path}' holds no object; a class map is {{an annotator's class: a data set's class, ...}}")
    path = written(tmp_path, "[" * 100_000, "map.json")
    with pytest.raises(UserError, match=r"' is not JSON \(.+\); a class map is an object or a table"):
        read_class_map(path, IMAGENET)


@pytest.mark.parametrize(("value", "shown"), [("3", "3"), ("null", "None"), ('["a"]', "['a']")])
def test_a_json_value_that_is_no_name_is_refused(value, shown, tmp_path):
    path = written(tmp_path, f'{{"0": "fish", "1": {value}}}')
    refused(path, f"'{path}', entry 2: '1' must become a class's name; got {shown}")


@pytest.mark.parametrize("text", ["0,fish\n1,\n", '{"0": "fish", "1": " "}'])
def test_a_class_without_a_target_is_refused(text, tmp_path):
    path = written(tmp_path, text)
    place = "entry 2" if text.startswith("{") else "line 2"
    refused(path, f"'{path}', {place}: '1' has no class of the data set")


@pytest.mark.parametrize(("row", "columns"), [("tench, Tinca tinca,fish", 3), ("tench", 1)])
def test_rows_of_other_than_two_columns_are_refused(row, columns, tmp_path):
    path = written(tmp_path, f"1,fish\n{row}\n")
    refused(
        path,
        f"'{path}', line 2: got {columns} columns; a class map has two, an annotator's class, "
        "in quotes if it has commas, and a data set's",
    )


def test_a_quote_that_is_not_closed_is_refused(tmp_path):
    path = written(tmp_path, '0,fish\n"1,fish\n')
    refused(path, f"'{path}', line 2: unexpected end of data; a class map is a table of two columns")


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\0\0", b"0,f\xefsh\n", b"0\0,fish\n"])
def test_a_file_that_is_no_text_is_refused(content, tmp_path):
    path = tmp_path / "map.csv"
    path.write_bytes(content)
    refused(path, f"'{path}' is no text in UTF-8; a class map is a JSON, CSV or TSV file")


def test_an_absent_file_is_refused(tmp_path):
    refused(tmp_path, f"there is no class map '{tmp_path}'; give a JSON, CSV or TSV file")


def by_definition(class_map: ClassMap, logits: torch.Tensor) -> torch.Tensor:
    """Log of the sum of exponentials, cell by cell and in float64."""
    b, k, h, w = logits.shape
    mapped = torch.full((b, len(class_map.classes), h, w), -math.inf, dtype=torch.float64)
    for image, row, column in torch.cartesian_prod(torch.arange(b), torch.arange(h), torch.arange(w)).tolist():
        sums = [[] for _ in class_map.classes]
        for source in range(k):
            if class_map.target[source] >= 0:
                sums[class_map.target[source]].append(float(logits[image, source, row, column]))
        for group, values in enumerate(sums):
            if values and max(values) > -math.inf:
                top = max(values)
                total = top + math.log(math.fsum(math.exp(value - top) for value in values))
                mapped[image, group, row, column] = total
    return mapped


SOME = ClassMap(classes=("a", "b", "empty", "c"), target=(0, -1, 3, 0, 1, 3, 0, -1, 3, 1))


@pytest.mark.parametrize(
    ("dtype", "answer"), [(torch.float32,) * 2, (torch.bfloat16, torch.float32), (torch.float64,) * 2]
)
def test_a_groups_logit_is_the_log_sum_exp_of_its_members(dtype, answer):
    logits = (20 * torch.randn(2, 10, 3, 4, generator=torch.Generator().manual_seed(0))).to(dtype)
    mapped = SOME.apply(logits)
    assert mapped.dtype == answer
    tolerance = 1e-12 if answer == torch.float64 else 1e-6
    torch.testing.assert_close(mapped.double(), by_definition(SOME, logits), rtol=tolerance, atol=tolerance)
    assert (mapped[:, 2] == -math.inf).all()


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_large_logits_do_not_overflow(shift):
    logits = shift + torch.randn(1, 10, 1, 1, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(SOME.apply(logits).double(), by_definition(SOME, logits), rtol=1e-6, atol=0)


def test_classes_of_no_probability_stay_so():
    logits = torch.full((1, 10, 1, 1), -math.inf)
    logits[0, 0] = 1.0
    assert SOME.apply(logits).flatten().tolist() == [1.0, -math.inf, -math.inf, -math.inf]


def test_a_map_of_each_class_to_itself_changes_nothing():
    logits = torch.randn(1, 10, 2, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ClassMap(tuple("abcdefghij"), tuple(range(10))).apply(logits), logits)


def test_probabilities_add_up():
    logits = torch.randn(1, 1000, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    halves = ClassMap(("even", "odd"), tuple(number % 2 for number in range(1000)))
    probabilities = logits.softmax(1)
    expected = torch.stack((probabilities[:, ::2].sum(1), probabilities[:, 1::2].sum(1)), 1)
    torch.testing.assert_close(halves.apply(logits).softmax(1), expected, rtol=1e-12, atol=0)
