"""`alltokens predict`, as typed."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from alltokens.annotate.class_map import class_names
from alltokens.cli.main import main
from alltokens.models.convert import to_published
from alltokens.models.factory import create_model, open_model
from alltokens.train.trainer import train

from ..annotate.toys import photo, photo_folder
from ..train.toy_runs import MACHINE, plain_labels, toy_config, toy_data

CLASSES = ("cat", "dog", "other")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("data"))


def short_run(config, folder: Path) -> Path:
    train(replace(config, schedule=replace(config.schedule, epochs=1)), folder, MACHINE, lambda *told: None)
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whose model adds 0.5 of the maximum over tokens."""
    config = toy_config(data)
    config = replace(config, model=replace(config.model, token_weight=0.5))
    return short_run(config, tmp_path_factory.mktemp("runs") / "run")


def predict(capsys, *arguments: object) -> dict:
    """What the command says as JSON."""
    assert main(["predict", *map(str, arguments), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def sentence(capsys, *arguments: object) -> str:
    """The mistake that it ends with."""
    assert main(["predict", *map(str, arguments)]) == 2
    return capsys.readouterr().err.removeprefix("error: ").removesuffix("\n")


@torch.no_grad()
def expected(run: Path, path: Path, token_weight: float, which: str = "best") -> list[tuple[str, float]]:
    """Classes and probabilities by timm's transform and the rule written out."""
    model = open_model(run / which / "model.safetensors").eval()
    transform = create_transform((3, 32, 32), crop_pct=0.9, interpolation="bicubic")
    prediction = model(transform(Image.open(path))[None])
    scores = prediction.image_logits + token_weight * prediction.token_logits.max(1).values
    certainty, first = scores[0].softmax(0).sort(descending=True)
    return [(CLASSES[number], share) for number, share in zip(first.tolist(), certainty.tolist(), strict=True)]


def assert_answers(answers: list[dict], wanted: list[tuple[str, float]]) -> None:
    assert [one["class"] for one in answers] == [name for name, _ in wanted]
    assert [one["probability"] for one in answers] == pytest.approx([share for _, share in wanted], rel=1e-4)


def test_files_and_folders_are_answered_by_the_models_own_rule(run: Path, data: Path, capsys):
    one, folder = data / "photos" / "dog" / "001.png", data / "photos" / "cat"
    told = predict(capsys, run, one, folder)
    assert told["rule"] == "image + 0.5 max token"
    assert told["unreadable"] == []
    assert [image["image"] for image in told["images"]] == [str(one), *map(str, sorted(folder.iterdir()))]
    for image in told["images"][:4]:
        assert_answers(image["answers"], expected(run, Path(image["image"]), 0.5))


def test_the_rule_the_model_and_the_number_of_answers_can_be_chosen(run: Path, data: Path, capsys):
    one = data / "photos" / "dog" / "001.png"
    told = predict(capsys, run, one, "--token-weight", 0, "--top", 2, "--which", "last")
    assert told["rule"] == "image"
    assert_answers(told["images"][0]["answers"], expected(run, one, 0.0, "last")[:2])


@torch.no_grad()
def test_imagenets_classes_are_told_in_words(tmp_path: Path, capsys):
    torch.manual_seed(0)
    theirs = timm.create_model("test_resnet").eval()
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    photo(3, 40, 50).save(tmp_path / "a.png")
    told = predict(capsys, tmp_path / "weights.pth", tmp_path / "a.png", "--name", "timm/test_resnet")
    transform = create_transform(**resolve_model_data_config(theirs))
    certainty, first = theirs(transform(Image.open(tmp_path / "a.png"))[None])[0].softmax(0).topk(5)
    names = class_names(1000)
    assert_answers(
        told["images"][0]["answers"],
        [(names[number], share) for number, share in zip(first.tolist(), certainty.tolist(), strict=True)],
    )
    words = timm.data.ImageNetInfo().index_to_description(int(first[0]))
    assert told["images"][0]["answers"][0]["words"] == words
    assert main(["predict", str(tmp_path / "weights.pth"), str(tmp_path / "a.png"), "--name", "timm/test_resnet"]) == 0
    assert words in capsys.readouterr().out


def test_the_table_has_a_row_for_each_answer(run: Path, data: Path, capsys):
    one, other = (data / "photos" / "dog" / f"00{number}.png" for number in (1, 3))
    assert main(["predict", str(run), str(one), str(other), "--top", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    rows = [line.split() for line in printed.out.splitlines()]
    (first, sure), (second, less) = expected(run, one, 0.5)[:2]
    assert rows[:3] == [["image", "class", "probability"], [str(one), first, f"{sure:.1%}"], [second, f"{less:.1%}"]]
    assert rows[3][0] == str(other)


def test_images_that_cannot_be_read_are_listed_and_end_nothing(run: Path, tmp_path: Path, capsys):
    photos = photo_folder(tmp_path / "photos", 2)
    (photos / "broken.jpg").write_bytes(b"")
    (photos / "note.txt").write_text("no image, and not taken for one in a folder")
    reason = "the image is empty"
    told = predict(capsys, run, photos)
    assert len(told["images"]) == 2
    assert told["unreadable"] == [{"image": f"{photos}/broken.jpg", "reason": reason}]
    assert main(["predict", str(run), str(photos)]) == 0
    assert capsys.readouterr().out.endswith(f"\n{photos}/broken.jpg has no answer: {reason}\n")
    assert sentence(capsys, run, photos / "broken.jpg") == (
        f"none of the 1 images can be read, such as '{photos}/broken.jpg' ({reason})"
    )


def test_odd_names_are_printed_as_they_are(run: Path, tmp_path: Path, capsys):
    """rich takes brackets for its markup, and not every name is UTF-8."""
    bracketed, foreign = tmp_path / "a[b]c.png", tmp_path / os.fsdecode(b"\xff.dat")
    photo(0, 40, 40).save(bracketed)
    foreign.write_bytes(bracketed.read_bytes())
    assert main(["predict", str(run), str(bracketed), str(foreign)]) == 0
    printed = capsys.readouterr().out
    assert str(bracketed) in printed
    assert f"{tmp_path}/\\xff.dat" in printed


def test_an_image_that_is_named_twice_is_answered_once(run: Path, data: Path, capsys):
    folder = data / "photos" / "cat"
    assert len(predict(capsys, run, folder, folder / "000.png")["images"]) == 12


def test_mistakes_are_one_sentence(run: Path, data: Path, tmp_path: Path, capsys):
    one = data / "photos" / "cat" / "000.png"
    assert sentence(capsys, run) == "there is nothing to predict; give images, or folders of them"
    assert sentence(capsys, run, one, "--top", 0) == "top must be at least 1; got top=0"
    assert sentence(capsys, run, tmp_path / "no.png") == f"there is no image or folder '{tmp_path / 'no.png'}'"
    assert sentence(capsys, run, tmp_path).startswith(f"there is no image in '{tmp_path}'; files that end in ")
    assert sentence(capsys, tmp_path, one) == (
        f"'{tmp_path}' is no run, as it has no config.yaml; give a run or a weight file"
    )
    assert sentence(capsys, "no/run", one) == "there is no run or weight file 'no/run'"
    assert sentence(capsys, run, one, "--token-weight", -1) == "--token-weight must be at least 0; got -1.0"


def test_a_run_without_a_model_yet_or_without_tokens_says_so(data: Path, tmp_path: Path, capsys):
    one = data / "photos" / "cat" / "000.png"
    plain = short_run(plain_labels(toy_config(data)), tmp_path / "plain")
    assert sentence(capsys, plain, one, "--token-weight", 0.5) == (
        f"--token-weight needs a model with a token head; got --token-weight 0.5 and '{plain}', which has none"
    )
    assert predict(capsys, plain, one)["rule"] == "image"
    (plain / "best" / "model.safetensors").unlink()
    assert sentence(capsys, plain, one) == (
        f"run '{plain}' has no best model yet; it has one when its first epoch is over"
    )


@pytest.mark.filterwarnings("ignore:.* has no token_head")
def test_a_token_head_that_the_file_lacks_has_no_say(tmp_path: Path, capsys):
    torch.manual_seed(0)
    model = create_model("lvvit_t")
    released = to_published(model.config, model.state_dict())
    path = tmp_path / "lvvit_t.pth"
    torch.save({key: tensor for key, tensor in released.items() if not key.startswith("aux_head.")}, path)
    photo(0, 40, 60).save(tmp_path / "x.png")
    said = predict(capsys, path, tmp_path / "x.png", "--name", "lvvit_t")
    assert said["rule"] == "image"
    assert predict(capsys, path, tmp_path / "x.png", "--name", "lvvit_t") == said


def test_a_file_without_a_classifier_answers_nothing(tmp_path: Path, data: Path, capsys):
    state = timm.create_model("test_resnet").state_dict()
    path = tmp_path / "body.pth"
    torch.save({key: tensor for key, tensor in state.items() if not key.startswith("fc.")}, path)
    assert sentence(capsys, path, data / "photos", "--name", "timm/test_resnet") == (
        f"'{path}' has no fc.weight, without which it answers at random"
    )
