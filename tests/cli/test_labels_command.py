"""`alltokens labels` with what is wrong, as typed: one sentence and no traceback."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from torch import Tensor, nn

from alltokens.annotate.annotator import Annotator
from alltokens.annotate.write import annotate
from alltokens.cli.main import main

from ..annotate.toys import CPU, Patches, photo_folder, toy_annotator, toy_job

pytestmark = pytest.mark.filterwarnings("default")


class Shifted(nn.Module):
    """All logits of the toy annotator, lower by as much as is asked for."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.patches, self.by = Patches(7), by

    def forward(self, images: Tensor) -> Tensor:
        return self.patches(images) - self.by


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return photo_folder(tmp_path / "data", 6)


def write(data: Path, store: Path, annotator: Annotator | None = None) -> Path:
    annotate(toy_job(data, annotator), store, CPU, lambda done, total: None)
    return store


@pytest.fixture
def store(tmp_path: Path, data: Path) -> Path:
    return write(data, tmp_path / "store")


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command that is refused says."""
    assert main(["labels", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_info_warns_of_logits_below_zero(tmp_path: Path, data: Path, store: Path, capsys):
    assert main(["labels", "info", str(store)]) == 0
    assert capsys.readouterr().err == ""
    low = replace(toy_annotator(), module=Shifted(50.0).eval())
    assert main(["labels", "info", str(write(data, tmp_path / "low", low))]) == 0
    assert capsys.readouterr().err == (
        "warning: the logits of annotator 'toy' lie below zero, where zero_fill takes named classes for less likely "
        "than all others; train with --objective.rule probabilities\n"
    )


def test_a_folder_in_the_place_of_a_file_is_one_sentence(tmp_path: Path, data: Path, store: Path, capsys):
    folder = tmp_path / "d.png"
    folder.mkdir()
    for arguments in (["pack", store, folder], ["show", store, data, "--output", folder]):
        sentence = said(capsys, *arguments).splitlines()[-1]
        assert sentence == f"error: cannot write '{folder}': it is a folder; give the name of a file"


def test_unpacking_into_the_folder_it_runs_in_is_one_sentence(tmp_path: Path, store: Path, capsys, monkeypatch):
    assert main(["labels", "pack", str(store), str(tmp_path / "labels.tar")]) == 0
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    capsys.readouterr()
    sentence = said(capsys, "unpack", tmp_path / "labels.tar", ".").splitlines()[-1]
    assert sentence == "error: '.' cannot be written as a whole; give a folder in it, such as 'new'"


def test_an_image_that_cannot_be_read_is_left_out_unless_it_is_asked_for(
    tmp_path: Path, data: Path, store: Path, capsys
):
    (data / "cat" / "000.png").write_bytes(b"no image")
    output = tmp_path / "maps.png"
    show = ["show", store, data, "--output", output]
    sentence = said(capsys, *show, "--keys", "cat/000.png")
    assert sentence.startswith(f"error: 'cat/000.png' of '{data}' cannot be drawn: the image is damaged or not one of ")
    assert sentence.endswith("; leave it out\n")
    assert not output.exists()
    assert main(["labels", *map(str, show)]) == 0
    assert capsys.readouterr().out == (
        f"wrote {output}, 5 images: cat/002.png, cat/004.png, dog/001.png, dog/003.png, dog/005.png\n"
    )
    with Image.open(output) as drawn:
        assert drawn.width > 1000


def test_an_image_that_had_no_labels_says_so(tmp_path: Path, data: Path, capsys):
    (data / "cat" / "000.png").write_bytes(b"no image")
    store = write(data, tmp_path / "store")
    sentence = said(capsys, "show", store, data, "--keys", "cat/000.png", "--output", tmp_path / "maps.png")
    assert sentence.startswith(f"error: label store '{store}' has no labels for 'cat/000.png': the image is damaged ")


def test_a_data_set_without_a_readable_image_is_one_sentence(tmp_path: Path, data: Path, store: Path, capsys):
    for path in data.rglob("*.png"):
        path.write_bytes(b"no image")
    assert said(capsys, "show", store, data, "--output", tmp_path / "maps.png") == (
        f"error: no image of '{data}' that was tried can be read; name others with --keys\n"
    )


def test_maps_of_other_rows_are_not_drawn(tmp_path: Path, capsys):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    pictures = [Image.new("RGB", (40, 40), (40 * number, 0, 0)) for number in range(4)]
    splits = {
        name: datasets.Dataset.from_dict({"image": pictures, "label": labels}, features=features)
        for name, labels in (("train", [0, 1, 0, 1]), ("test", [0, 1, 0, 1]))
    }
    data, store = tmp_path / "animals", tmp_path / "store"
    datasets.DatasetDict(splits).save_to_disk(data)
    annotate(toy_job(data, split="train"), store, CPU, lambda done, total: None)
    show = ["show", store, data, "--output", tmp_path / "maps.png"]
    assert main(["labels", *map(str, show), "--split", "train"]) == 0
    capsys.readouterr()
    assert said(capsys, *show, "--split", "test") == (
        f"error: label store '{store}' was made of split 'train', and this is split 'test' of '{data}'; "
        "annotate this one\n"
    )
