"""A run's weight files say how its model is used, so that no command uses it otherwise."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from alltokens.annotate.annotator import open_annotator
from alltokens.augment.finish import FinishConfig
from alltokens.cli.trained import open_trained
from alltokens.errors import UserError
from alltokens.export.hub import write_hub, write_timm
from alltokens.export.scores import record
from alltokens.models.factory import open_model
from alltokens.models.loading import build
from alltokens.models.timm_model import TimmConfig
from alltokens.models.usage import Usage
from alltokens.models.weights import read_weights
from alltokens.objectives.classify import ClassifyConfig
from alltokens.objectives.distill import DistillConfig
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.teachers import open_teacher
from alltokens.recipes.own_folder import annotator_of_run
from alltokens.train.trainer import open_data, train

from .toy_runs import MACHINE, SIZE, plain_labels, silent, toy_config, toy_data

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of two classes, and labels of three."""
    return toy_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", params=["ours", "timm"])
def run(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one epoch, with a normalisation and an evaluation that nobody publishes of its model."""
    config = toy_config(data)
    if request.param == "timm":
        network = TimmConfig(name="test_resnet", classes=2, image_size=SIZE, token_head=False)
        config = replace(plain_labels(config), model=network, objective=ClassifyConfig(mix=MixConfig(kind="none")))
    config = replace(
        config,
        objective=replace(config.objective, finish=FinishConfig(mean=MEAN, std=STD)),
        evaluation=replace(config.evaluation, crop=0.75, interpolation="bilinear"),
        schedule=replace(config.schedule, epochs=1),
    )
    folder = tmp_path_factory.mktemp("runs") / request.param
    train(config, folder, MACHINE, silent)
    return folder


def classes_of(run: Path) -> tuple[str, ...]:
    return ("cat", "dog", "other") if run.name == "ours" else ("cat", "dog")


@pytest.mark.parametrize("which", ["best", "last"])
def test_both_weight_files_of_a_run_say_how_their_model_is_used(run: Path, which: str) -> None:
    usage = Usage(mean=MEAN, std=STD, crop=0.75, interpolation="bilinear", classes=classes_of(run))
    assert read_weights(run / which / "model.safetensors").usage == usage


def test_every_command_uses_a_runs_weight_file_as_the_run_does(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "moved.safetensors"
    shutil.copy(run / "best" / "model.safetensors", path)
    for source in (run, run / "best" / "model.safetensors", path):
        trained = open_trained(str(source), None, None)
        assert (trained.finish.mean, trained.finish.std, trained.classes) == (MEAN, STD, classes_of(run))
        assert (trained.evaluation.crop, trained.evaluation.interpolation) == (0.75, "bilinear")
    for annotator in (annotator_of_run(run), open_annotator(str(path))):
        assert (annotator.mean, annotator.std, annotator.classes) == (MEAN, STD, classes_of(run))
        assert annotator.interpolation == "bilinear"
    teacher = open_teacher(str(path), None, SIZE)
    assert (teacher.mean, teacher.std) == (MEAN, STD)
    about = record(open_model(path), "mine", None, read_weights(path).usage)
    assert (about.mean, about.standard_deviation, about.crop_ratio) == (MEAN, STD, 0.75)


def test_what_is_exported_of_a_run_says_it_too(run: Path, tmp_path: Path) -> None:
    weights = run / "best" / "model.safetensors"
    model, usage = open_model(weights), read_weights(weights).usage
    about = record(model, "mine", None, usage)
    write_hub(model, about, tmp_path / "hub")
    assert read_weights(tmp_path / "hub" / "model.safetensors").usage == usage
    taken = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).pretrained_cfg
    assert (taken["label_names"], taken["crop_pct"]) == ([*classes_of(run)], 0.75)


def test_what_is_exported_is_opened_with_images_of_its_size_and_without_a_classifier_says_so(tmp_path: Path) -> None:
    path, config = tmp_path / "mine.safetensors", TimmConfig(name="test_resnet", classes=2, image_size=(64, 96))
    usage = Usage(mean=MEAN, std=STD, crop=0.75, interpolation="bilinear", classes=("cat", "dog"))
    model = build(config)
    write_timm(model, record(model, "mine", None, usage), path)
    assert open_model(path, "timm/test_resnet").config.image_size == (64, 96)
    trained = open_trained(str(path), None, "timm/test_resnet")
    assert (trained.image_size, trained.classes) == ((64, 96), ("cat", "dog"))

    with safe_open(path, "pt") as file:
        said, others = file.metadata(), {key: file.get_tensor(key) for key in file.keys() if not key.startswith("fc.")}  # noqa: SIM118 (not a dict)
    save_file(others, path, said)
    sentence = f"'{path}' has no fc.weight, without which it answers at random"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        open_trained(str(path), None, "timm/test_resnet")


def test_what_is_exported_with_names_that_are_not_those_of_its_classes_is_refused(tmp_path: Path) -> None:
    path, config = tmp_path / "mine.safetensors", TimmConfig(name="test_resnet", classes=3, image_size=SIZE)
    model = build(config)
    usage = Usage(mean=MEAN, std=STD, crop=0.75, interpolation="bilinear", classes=("cat", "dog"))
    write_timm(model, record(model, "mine", None, usage), path)
    with pytest.raises(UserError, match=rf"^'{path}' has 3 classes and names 2; export it again$"):
        open_model(path, "timm/test_resnet")


@pytest.mark.parametrize(
    ("field", "text", "reason"),
    [
        ("crop_ratio", "2", "crop must be from 0.001 to 1; got crop=2"),
        ("crop_ratio", "5e-324", "crop must be from 0.001 to 1; got crop=5e-324"),
        ("standard_deviation", "[1, 1, 1e-300]", "std must be three numbers from 0.001 to 1000; got std="),
        ("image_size", "[64, 0]", "image_size must be from 1 to 8,192 pixels a side; got image_size=(64, 0)"),
        ("image_size", "64", "image_size must be "),
        ("mean", '"' + "x" * 5_000_000 + '"', "usage.mean must be a list"),
        ("mean", "[1, 2]", "usage.mean must be a list of 3; got [1, 2]"),
        ("classes", "nonsense", "Expecting value: line 1 column 1"),
        ("classes", "[" * 100_000, "maximum recursion depth"),
        ("interpolation", "any", "usage.interpolation must be one of bilinear, bicubic; got 'any'"),
    ],
)
def test_a_file_that_says_something_else_of_its_use_is_refused(
    field: str, text: str, reason: str, tmp_path: Path
) -> None:
    about = {"mean": "[0, 0, 0]", "standard_deviation": "[1, 1, 1]", "crop_ratio": "1", "image_size": "[64, 64]"}
    about["classes"] = '["cat", "dog"]'
    path = tmp_path / "mine.safetensors"
    save_file({"head.weight": torch.zeros(2, 4)}, path, {**about, "interpolation": "bicubic", field: text})
    with pytest.raises(UserError) as error:
        read_weights(path)
    assert str(error.value).startswith(f"'{path}' does not say as we do how it is used ({reason}")
    assert str(error.value).endswith("); export it again")
    assert len(str(error.value)) < 500


def test_a_run_whose_teacher_knows_as_many_other_classes_is_refused(run: Path, data: Path, tmp_path: Path) -> None:
    photos, teacher = tmp_path / "photos", str(run / "best" / "model.safetensors")
    shutil.copytree(data / "photos", photos)
    (photos / "cat").rename(photos / "zebra")
    config = plain_labels(toy_config(data))
    config = replace(
        config, data=replace(config.data, root=str(photos), validation=None), objective=DistillConfig(teacher=teacher)
    )
    with pytest.raises(UserError) as error:
        open_data(config)
    classes = ", ".join(map(repr, classes_of(run)))
    assert str(error.value) == (
        f"the teacher '{teacher}' does not know the data's class 'zebra' by its name; it has {len(classes_of(run))} "
        f"classes, such as {classes}"
    )
