"""`alltokens evaluate`, as typed: its figures against a plain loop of timm's, and its mistakes."""

import json
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image, ImageEnhance
from timm.data import create_transform, resolve_model_data_config
from timm.utils import accuracy
from torch import Tensor, nn

from alltokens.annotate.class_map import class_names
from alltokens.augment.finish import FinishConfig
from alltokens.cli.main import main
from alltokens.models.factory import create_model, open_model
from alltokens.models.resize import set_image_size
from alltokens.models.weights import save_model
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.train.journal import read_reports
from alltokens.train.trainer import train

from ..annotate.toys import photo, photo_folder
from ..kinds import TINY, lively
from ..train.toy_runs import MACHINE, plain_labels, toy_config, toy_data

CLASSES = ("cat", "dog", "other")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bright dogs and dark cats, some of them the other way round, so that a model is right about most."""
    folder = toy_data(tmp_path_factory.mktemp("data"))
    for path in photos_of(folder / "photos"):
        is_bright = (path.parent.name == "dog") != (int(path.stem) % 7 == 0)
        with Image.open(path) as image:
            changed = ImageEnhance.Brightness(image).enhance(1.5 if is_bright else 0.5)
        changed.save(path)
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of four epochs on token labels, the second of them the best, with a crop and a normalisation of its own."""
    config = toy_config(data)
    config = replace(
        config,
        evaluation=replace(config.evaluation, crop=0.75, interpolation="bilinear"),
        objective=TokenLabelConfig(mix=MixConfig(kind="none"), finish=FinishConfig(mean=(0.4, 0.5, 0.6))),
        augment=replace(config.augment, policy=None),
        schedule=replace(config.schedule, epochs=4),
        average=None,
        seed=2,
    )
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(config, folder, MACHINE, lambda *told: None)
    return folder


@pytest.fixture(scope="module")
def plain_run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On class labels, without a token head."""
    folder = tmp_path_factory.mktemp("runs") / "plain"
    config = plain_labels(toy_config(data))
    train(replace(config, schedule=replace(config.schedule, epochs=1)), folder, MACHINE, lambda *told: None)
    return folder


def evaluate(capsys, *arguments: object) -> dict:
    """What the command says as JSON."""
    assert main(["evaluate", *map(str, arguments), "--workers", "0", "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def sentence(capsys, *arguments: object) -> str:
    """The mistake that it ends with."""
    assert main(["evaluate", *map(str, arguments)]) == 2
    return capsys.readouterr().err.removeprefix("error: ").removesuffix("\n")


def photos_of(data: Path) -> list[Path]:
    return sorted(data.glob("*/*.png"))


@torch.no_grad()
def plain_loop(model: nn.Module, transform, data: Path, classes, token_weight: float) -> tuple[Tensor, Tensor]:
    """Scores and classes, image by image."""
    model.eval()
    scores, truth = [], []
    for path in photos_of(data):
        answer = model(transform(Image.open(path).convert("RGB"))[None])
        if isinstance(answer, tuple):
            image = answer.image_logits
            answer = image if token_weight == 0 else image + token_weight * answer.token_logits.max(1).values
        scores.append(answer)
        truth.append(list(classes).index(path.parent.name))
    return torch.cat(scores), torch.tensor(truth)


def assert_figures(figures: dict, scores: Tensor, truth: Tensor) -> None:
    top1, top5 = accuracy(scores, truth, topk=(1, 5))
    assert 100 * figures["top1"] == pytest.approx(float(top1))
    assert 100 * figures["top5"] == pytest.approx(float(top5))
    assert figures["loss"] == pytest.approx(float(nn.functional.cross_entropy(scores, truth)), rel=1e-5)


# Figures


def test_a_run_has_the_figures_that_it_reported_for_its_best_epoch(run: Path, data: Path, capsys):
    best = max(read_reports(run / "metrics.jsonl"), key=lambda line: line["top1"])
    told = evaluate(capsys, run, data / "photos")
    figures = told["rules"]["image"]
    assert figures["top1"] == best["top1"]
    assert figures["top5"] == best["top5"]
    assert figures["loss"] == pytest.approx(best["loss"], rel=1e-5)
    assert (told["images"], told["unreadable"], told["without_class"]) == (24, [], 0)
    assert (told["size"], told["crop"]) == ([32, 32], 0.75)
    assert evaluate(capsys, run / "best" / "model.safetensors", data / "photos")["rules"] == told["rules"]


def test_the_last_model_has_the_figures_of_the_last_epoch(run: Path, data: Path, capsys):
    last = read_reports(run / "metrics.jsonl")[-1]
    figures = evaluate(capsys, run, data / "photos", "--which", "last")["rules"]["image"]
    assert figures["top1"] == last["top1"]
    assert figures["loss"] == pytest.approx(last["loss"], rel=1e-5)


def test_both_rules_have_the_figures_of_a_plain_loop(run: Path, data: Path, capsys):
    model = open_model(run / "best" / "model.safetensors")
    transform = create_transform((3, 32, 32), crop_pct=0.75, interpolation="bilinear", mean=(0.4, 0.5, 0.6))
    told = evaluate(capsys, run, data / "photos", "--batch", 7)
    assert list(told["rules"]) == ["image", "image + 0.5 max token"]
    for weight, figures in zip((0.0, 0.5), told["rules"].values(), strict=True):
        scores, truth = plain_loop(model, transform, data / "photos", CLASSES, weight)
        assert_figures(figures, scores, truth)


def test_size_crop_and_weight_can_be_others(run: Path, data: Path, capsys):
    model = open_model(run / "best" / "model.safetensors")
    set_image_size(model, 48, 48)
    transform = create_transform((3, 48, 48), crop_pct=1.0, interpolation="bilinear", mean=(0.4, 0.5, 0.6))
    told = evaluate(capsys, run, data / "photos", "--size", 48, "--crop", 1.0, "--token-weight", 2)
    assert (told["size"], told["crop"]) == ([48, 48], 1.0)
    assert_figures(told["rules"]["image + 2 max token"], *plain_loop(model, transform, data / "photos", CLASSES, 2.0))
    told = evaluate(capsys, run, data / "photos", "--token-weight", 0)
    assert list(told["rules"]) == ["image"]


def test_weights_of_timms_are_evaluated_as_timm_does(tmp_path: Path, capsys):
    torch.manual_seed(0)
    theirs = timm.create_model("test_resnet")
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    names = class_names(1000)
    for number in range(6):
        path = tmp_path / "data" / names[100 * (number % 2)] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(number, 50, 60).save(path)
    told = evaluate(capsys, tmp_path / "weights.pth", tmp_path / "data", "--name", "timm/test_resnet", "--by-class")
    known = resolve_model_data_config(theirs)
    assert (told["size"], told["crop"]) == ([*known["input_size"][1:]], known["crop_pct"])
    # The token head that our adapter adds was never trained.
    assert list(told["rules"]) == ["image"]
    assert_figures(
        told["rules"]["image"], *plain_loop(theirs, create_transform(**known), tmp_path / "data", names, 0.0)
    )
    assert [one["class"] for one in told["by_class"]["classes"]] == [names[0], names[100]]
    assert told["by_class"]["classes"][0]["words"] == "tench, Tinca tinca"


def test_a_published_model_is_shown_the_published_crop(tmp_path: Path, capsys):
    save_model(create_model("vit_ti", image_size=32), tmp_path / "mine.safetensors")
    path = tmp_path / "data" / class_names(1000)[3] / "a.png"
    path.parent.mkdir(parents=True)
    photo(0, 40, 40).save(path)
    told = evaluate(capsys, tmp_path / "mine.safetensors", tmp_path / "data")
    assert told["crop"] == timm.create_model("vit_ti").pretrained_cfg["crop_pct"]


@pytest.mark.filterwarnings("default")
def test_a_crop_that_nobody_published_is_ours_and_warned_of(tmp_path: Path, capsys):
    save_model(lively(TINY), tmp_path / "tiny.safetensors")
    photo_folder(tmp_path / "data", 2)
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / "data" / name).rename(tmp_path / "data" / str(number))
    arguments = ["evaluate", str(tmp_path / "tiny.safetensors"), str(tmp_path / "data"), "--workers", "0"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "2 images of " in printed.out
    assert "at 32 x 48 pixels, crop 0.9" in printed.out
    warning = "warning: the crop ratio of 'tiny' is not known, as its config is no published one: 0.9 is taken\n"
    assert printed.err.startswith(warning)
    assert main([*arguments, "--crop", "0.7"]) == 0
    printed = capsys.readouterr()
    assert "crop 0.7" in printed.out
    assert "warning" not in printed.err


def test_classes_have_rows_of_their_own(run: Path, data: Path, capsys):
    told = evaluate(capsys, run, data / "photos", "--by-class")["by_class"]
    assert told["rule"] == "image + 0.5 max token"
    model = open_model(run / "best" / "model.safetensors")
    transform = create_transform((3, 32, 32), crop_pct=0.75, interpolation="bilinear", mean=(0.4, 0.5, 0.6))
    scores, truth = plain_loop(model, transform, data / "photos", CLASSES, 0.5)
    assert [one["class"] for one in told["classes"]] == ["cat", "dog"]
    for number, one in enumerate(told["classes"]):
        first = scores[truth == number].argmax(1).tolist()
        assert one["images"] == 12
        assert one["top1"] == pytest.approx(first.count(number) / 12)
        wrong = [other for other in first if other != number]
        assert one["mistaken_for"] == (CLASSES[max(sorted(set(wrong)), key=wrong.count)] if wrong else None)


# ImageNet-V2 and ReaL


@pytest.fixture(scope="module")
def of_imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weight file with ImageNet's classes, and so with their ids."""
    path = tmp_path_factory.mktemp("weights") / "imagenet.safetensors"
    save_model(lively(replace(TINY, image_size=(32, 32), classes=1000)), path)
    return path


def run_with(run: Path, folder: Path, classes: Sequence[str]) -> Path:
    """The same model with other names for its classes."""
    (folder / "best").mkdir(parents=True)
    for name in ("config.yaml", "best/model.safetensors"):
        (folder / name).write_bytes((run / name).read_bytes())
    (folder / "classes.json").write_text(json.dumps(classes))
    return folder


def test_folders_of_imagenet_v2_are_imagenets_classes_by_number(of_imagenet: Path, tmp_path: Path, capsys):
    data = tmp_path / "imagenetv2-matched-frequency-format-val"
    model, names = open_model(of_imagenet), tuple(map(str, range(1000)))
    transform = create_transform((3, 32, 32), crop_pct=0.9, interpolation="bicubic")
    for number in range(14):
        path = data / str(number) / f"{number}.png"
        path.parent.mkdir(parents=True)
        photo(number, 40, 40).save(path)
    # Each second one moves to the folder of the model's own answer, so that it is right about some.
    scores, truth = plain_loop(model, transform, data, names, 0.0)
    for number, first in zip(truth.tolist(), scores.argmax(1).tolist(), strict=True):
        if number % 2:
            (data / str(first)).mkdir(exist_ok=True)
            (data / str(number) / f"{number}.png").rename(data / str(first) / f"{number}.png")
    scores, truth = plain_loop(model, transform, data, names, 0.0)
    assert truth.tolist() != sorted(truth.tolist())
    told = evaluate(capsys, of_imagenet, data, "--crop", 0.9, "--by-class")
    assert_figures(told["rules"]["image"], scores, truth)
    assert told["rules"]["image"]["top1"] >= 0.5
    ids = class_names(1000)
    assert [one["class"] for one in told["by_class"]["classes"]] == [ids[n] for n in sorted(set(truth.tolist()))]
    assert main(["evaluate", str(of_imagenet), str(data), "--crop", "0.9", "--workers", "0"]) == 0
    printed = capsys.readouterr()
    assert "classes are ImageNet's by number: 0 is n01440764, tench, Tinca tinca\n" in printed.err
    assert "14 images of " in printed.out


def test_a_model_whose_own_classes_are_numbers_knows_them_by_name(run: Path, data: Path, tmp_path: Path, capsys):
    renamed = run_with(run, tmp_path / "run", ["10", "2", "0"])
    (tmp_path / "photos").mkdir()
    for name, number in (("cat", "10"), ("dog", "2")):
        (tmp_path / "photos" / number).symlink_to(data / "photos" / name)
    assert evaluate(capsys, renamed, tmp_path / "photos")["rules"] == evaluate(capsys, run, data / "photos")["rules"]


def test_a_model_of_some_of_imagenets_classes_names_those_that_it_has_not(run: Path, tmp_path: Path, capsys):
    names = class_names(1000)
    some = run_with(run, tmp_path / "run", [names[10], names[2], names[0]])
    photos = photo_folder(tmp_path / "photos", 4)
    (photos / "cat").rename(photos / "10")
    (photos / "dog").rename(photos / "2")
    assert evaluate(capsys, some, photos)["images"] == 4
    (photos / "2").rename(photos / "3")
    assert main(["evaluate", str(some), str(photos)]) == 2
    assert capsys.readouterr().err.endswith(
        f"error: '{photos}' has 1 classes that are not among the model's 3, such as '{names[3]}'; the model's are "
        f"such as '{names[10]}', '{names[2]}', '{names[0]}'\n"
    )


@pytest.fixture(scope="module")
def validation(run: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The run as a model of three of ImageNet's classes, and validation images with several, one or no ReaL label."""
    labels = json.loads(files("timm.data").joinpath("_info/imagenet_real_labels.json").read_text())
    folder = tmp_path_factory.mktemp("real")
    several = next(right for right in labels if len(right) == 2)
    classes = [class_names(1000)[number] for number in (*several, 0)]
    kinds = [several, [several[0]], [several[1]], [0], []]
    numbers = [[number for number, right in enumerate(labels, start=1) if right == kind] for kind in kinds]
    # None of the model's classes, and one of them beside one that it has not.
    numbers.append([number for number, right in enumerate(labels, start=1) if right == [1]])
    numbers.append([number for number, right in enumerate(labels, start=1) if len(right) > 1 and 0 in right])
    for place, path in enumerate(photos_of(data / "photos")):
        kind = numbers[place % 7]
        name = f"ILSVRC2012_val_{kind[place // 7 % len(kind)]:08}.png"
        target = folder / "val" / classes[path.parent.name == "dog"] / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return run_with(run, folder / "run", classes), folder / "val"


def real_loop(run: Path, data: Path, token_weight: float) -> tuple[int, float]:
    """How many images have a label that the model knows, and how often it gives one of them."""
    labels = json.loads(files("timm.data").joinpath("_info/imagenet_real_labels.json").read_text())
    classes = json.loads((run / "classes.json").read_text())
    transform = create_transform((3, 32, 32), crop_pct=0.75, interpolation="bilinear", mean=(0.4, 0.5, 0.6))
    model = open_model(run / "best" / "model.safetensors")
    scores, _ = plain_loop(model, transform, data, classes, token_weight)
    ids = class_names(1000)
    count, right = 0, 0
    for path, first in zip(photos_of(data), scores.argmax(1).tolist(), strict=True):
        known = [ids[label] for label in labels[int(path.stem.removeprefix("ILSVRC2012_val_")) - 1]]
        if set(known) & set(classes):
            count += 1
            right += classes[first] in known
    return count, right / count


def test_real_top1_is_that_of_a_loop_over_the_labels(validation: tuple[Path, Path], capsys):
    told = evaluate(capsys, *validation, "--real", "--batch", 5)
    plain = evaluate(capsys, *validation)
    for weight, figures, without in zip((0.0, 0.5), told["rules"].values(), plain["rules"].values(), strict=True):
        count, right = real_loop(*validation, weight)
        assert told["real_images"] == count < told["images"]
        assert figures == without | {"real_top1": right}
        assert 0 < right < 1
    assert "real_images" not in plain


def test_the_table_says_real_top1_and_what_it_is_of(validation: tuple[Path, Path], capsys):
    told = evaluate(capsys, *validation, "--real")
    assert main(["evaluate", *map(str, validation), "--workers", "0", "--real"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rule", "top-1", "top-5", "loss", "ReaL", "top-1"]
    for line, figures in zip(lines[1:3], told["rules"].values(), strict=True):
        assert line.split()[-1] == f"{figures['real_top1']:.2%}"
    assert lines[4:] == [f"ReaL top-1 is of {told['real_images']} images with a ReaL label among the model's classes"]


def test_real_top1_needs_no_class_folders(validation: tuple[Path, Path], tmp_path: Path, capsys):
    run, data = validation
    with tarfile.open(tmp_path / "val.tar", "w") as archive:
        for path in photos_of(data):
            archive.add(path, path.name)
    told = evaluate(capsys, run, tmp_path / "val.tar", "--real")
    whole = evaluate(capsys, run, data, "--real")
    assert (told["images"], told["without_class"]) == (0, whole["images"])
    assert told["real_images"] == whole["real_images"]
    for figures, expected in zip(told["rules"].values(), whole["rules"].values(), strict=True):
        assert figures == {"top1": None, "top5": None, "loss": None, "real_top1": expected["real_top1"]}
    assert main(["evaluate", str(run), str(tmp_path / "val.tar"), "--workers", "0", "--real"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].split()[1:4] == ["-", "-", "-"]
    assert f"\nleft out of all but ReaL top-1: {whole['images']} without a class\n" in printed


# What is printed


def test_the_table_says_the_figures_and_what_they_are_of(run: Path, data: Path, capsys):
    told = evaluate(capsys, run, data / "photos")["rules"]
    assert main(["evaluate", str(run), str(data / "photos"), "--workers", "1", "--by-class"]) == 0
    printed = capsys.readouterr()
    assert "evaluating: 24 of 24 images" in printed.err
    lines = [line.rstrip() for line in printed.out.splitlines()]
    assert lines[0].split() == ["rule", "top-1", "top-5", "loss"]
    for line, (rule, figures) in zip(lines[1:3], told.items(), strict=True):
        values = f"{figures['top1']:.2%}", f"{figures['top5']:.2%}", f"{figures['loss']:.4f}"
        assert line.split("  ")[0] == rule
        assert line.split()[-3:] == list(values)
    assert lines[3] == f"24 images of {data / 'photos'} at 32 x 32 pixels, crop 0.75"
    assert lines[4:6] == ["", "by image + 0.5 max token"]
    assert lines[6].split("  ")[0] == "class"
    assert [line.split()[:2] for line in lines[7:]] == [["cat", "12"], ["dog", "12"]]


def test_images_that_cannot_be_read_or_have_no_class_are_counted(run: Path, tmp_path: Path, capsys):
    photos = photo_folder(tmp_path / "photos", 6)
    for name in "abcd":
        (photos / "dog" / f"{name}.jpg").write_bytes(b"no image")
    photo(7, 40, 40).save(photos / "loose.png")
    told = evaluate(capsys, run, photos)
    assert (told["images"], told["without_class"]) == (6, 1)
    assert told["unreadable"] == ["dog/a.jpg", "dog/b.jpg", "dog/c.jpg", "dog/d.jpg"]
    assert main(["evaluate", str(run), str(photos), "--workers", "0"]) == 0
    printed = capsys.readouterr().out
    assert "\nleft out: 4 that cannot be read, such as 'dog/a.jpg', 'dog/b.jpg', 'dog/c.jpg'\n" in printed
    assert "\nleft out: 1 without a class\n" in printed


def test_a_class_name_with_brackets_is_printed_as_it_is(run: Path, data: Path, tmp_path: Path, capsys):
    """rich takes them for its markup."""
    renamed = run_with(run, tmp_path / "run", ["[b]cat", "dog", "other"])
    photos = photo_folder(tmp_path / "photos", 2)
    (photos / "cat").rename(photos / "[b]cat")
    assert main(["evaluate", str(renamed), str(photos), "--workers", "0", "--by-class"]) == 0
    assert "\n[b]cat" in capsys.readouterr().out


# Mistakes


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--size", "30"], "image_size must be a multiple of the patch; got 30 x 30 with patch 8"),
        (["--size", "0"], "size must be above 0; got size=0"),
        (["--crop", "1.5"], "crop must be from 0.001 to 1; got crop=1.5"),
        (["--batch", "0"], "batch must be at least 1; got batch=0"),
        (["--workers", "-1"], "workers must be at least 0; got workers=-1"),
        (["--token-weight", "-1"], "--token-weight must be at least 0; got -1.0"),
        (["--name", "vit_s"], "--name is for weight files, and '{run}' is a run; got --name vit_s"),
        (["--split", "val"], "'{data}' has no splits; give the path of the split's folder or file instead of 'val'"),
    ],
)
def test_a_wrong_flag_is_one_sentence(run: Path, data: Path, flags: list[str], expected: str, capsys):
    assert sentence(capsys, run, data / "photos", *flags) == expected.format(run=run, data=data / "photos")


def test_a_model_without_a_token_head_takes_no_token_weight(plain_run: Path, data: Path, capsys):
    assert sentence(capsys, plain_run, data / "photos", "--token-weight", 0.5) == (
        f"--token-weight needs a model with a token head; got --token-weight 0.5 and '{plain_run}', which has none"
    )
    assert list(evaluate(capsys, plain_run, data / "photos")["rules"]) == ["image"]


def test_classes_that_the_model_does_not_know_are_named(run: Path, tmp_path: Path, capsys):
    photos = photo_folder(tmp_path / "photos", 2)
    (photos / "cat").rename(photos / "tiger")
    assert sentence(capsys, run, photos) == (
        f"'{photos}' has 1 classes that are not among the model's 3, such as 'tiger'; the model's are such as "
        "'cat', 'dog', 'other'"
    )


def test_real_labels_are_of_imagenets_images_and_classes(run: Path, validation: tuple[Path, Path], data: Path, capsys):
    photos = data / "photos"
    assert sentence(capsys, run, photos, "--real") == (
        "ReaL labels are classes of ImageNet, and 3 of the model's 3 are none, such as 'cat', 'dog', 'other'; --real "
        "needs a model whose classes are WordNet ids, such as 'n01440764'"
    )
    assert sentence(capsys, validation[0], photos, "--real") == (
        f"ReaL labels are of ImageNet's validation set, and 24 of the 24 images of '{photos}' are not named as in it, "
        "such as 'cat/000.png', 'cat/002.png', 'cat/004.png'; its names go from ILSVRC2012_val_00000001.JPEG to "
        "ILSVRC2012_val_00050000.JPEG"
    )


def test_what_is_no_trained_model_is_refused(run: Path, data: Path, tmp_path: Path, capsys):
    photos = data / "photos"
    assert sentence(capsys, photos, photos) == (
        f"'{photos}' is no run, as it has no config.yaml; give a run or a weight file"
    )
    assert sentence(capsys, tmp_path / "no.safetensors", photos) == (
        f"there is no run or weight file '{tmp_path / 'no.safetensors'}'"
    )
    for name in ("lvvit_s", "timm/test_vit"):
        assert sentence(capsys, name, photos) == (
            f"'{name}' is the name of a model, which no weights come with; give a run or a weight file"
        )
    (tmp_path / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    for which in ("best", "last"):
        assert sentence(capsys, tmp_path, photos, "--which", which) == (
            f"run '{tmp_path}' has no {which} model yet; it has one when its first epoch is over"
        )
    file = run / "best" / "model.safetensors"
    assert sentence(capsys, file, photos, "--which", "last") == (
        f"--which chooses from a run, and '{file}' is a weight file; got --which last"
    )


def test_a_run_whose_classes_are_damaged_is_refused(run: Path, data: Path, tmp_path: Path, capsys):
    (tmp_path / "best").mkdir()
    for name in ("config.yaml", "best/model.safetensors"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    classes = tmp_path / "classes.json"
    said = sentence(capsys, tmp_path, data / "photos")
    assert said.startswith(f"'{classes}' cannot be read as JSON (")
    assert said.endswith("); it names the classes of the run")
    classes.write_text("[1, 2]")
    assert sentence(capsys, tmp_path, data / "photos") == (
        f"'{classes}' holds no list of names; it names the classes of the run"
    )
    classes.write_text('["cat", "dog"]')
    assert sentence(capsys, tmp_path, data / "photos") == (
        f"'{tmp_path}' has 3 classes, and the run that it lies in names 2"
    )
