"""Whole runs with a teacher and repeats: they go on where they were stopped, and keep nothing of the teacher."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alltokens.models.timm_model import TimmClassifier, TimmConfig
from alltokens.models.weights import read_weights, save_model
from alltokens.objectives.distill import DistillConfig
from alltokens.objectives.token_label import TokenLabelConfig
from alltokens.train.checkpoint import load_checkpoint
from alltokens.train.config import TrainConfig
from alltokens.train.journal import read_reports
from alltokens.train.run_folder import BEST, CLASSES, LAST, METRICS, REPORT, read_classes
from alltokens.train.stopping import Stopped
from alltokens.train.trainer import open_data, train

from ..annotate.toys import photo_folder
from ..train.toy_runs import MACHINE, SIZE, plain_labels, silent, stop_at, toy_config, without_batch_norm


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of two classes, and a teacher for them."""
    folder = tmp_path_factory.mktemp("data")
    photo_folder(folder / "photos", 24)
    torch.manual_seed(0)
    teacher = TimmClassifier(TimmConfig(name="test_resnet", classes=2, image_size=SIZE, token_head=False))
    save_model(teacher, folder / "teacher.safetensors")
    return folder


def distilled(data: Path) -> TrainConfig:
    config = without_batch_norm(plain_labels(toy_config(data)))
    return replace(
        config,
        model=replace(config.model, distillation_token=True),
        objective=DistillConfig(teacher=str(data / "teacher.safetensors")),
        repeats=2,
    )


def online(data: Path) -> TrainConfig:
    config = plain_labels(toy_config(data))
    return replace(
        config,
        model=replace(config.model, token_head=True),
        objective=TokenLabelConfig(teacher=str(data / "teacher.safetensors")),
    )


@pytest.mark.parametrize(
    ("make", "words", "part"),
    [(distilled, "Class labels and hard labels by", "teacher"), (online, "Token labels by", "token")],
)
def test_a_run_with_a_teacher_ends_the_same_however_often_it_was_stopped(
    data: Path, tmp_path: Path, make, words: str, part: str
) -> None:
    config = make(data)
    train(config, tmp_path / "whole", MACHINE, silent)
    with pytest.raises(Stopped):
        train(config, tmp_path / "parts", MACHINE, stop_at(4))
    train(config, tmp_path / "parts", MACHINE, silent)
    one, other = (load_checkpoint(tmp_path / name / LAST) for name in ("whole", "parts"))
    torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=0)
    assert all(name.startswith("model.") for name in one.weights)
    # No more is kept than what the model without a teacher has.
    assert set(read_weights(tmp_path / "whole" / BEST / "model.safetensors").state) == set(one.model.state_dict())
    assert {name.removeprefix("model.") for name in one.weights} == set(one.model.state_dict())
    assert all(report[f"train_{part}"] > 0 for report in read_reports(tmp_path / "whole" / METRICS))
    assert words in (tmp_path / "whole" / REPORT).read_text()


def of_imagenet(config: TrainConfig, folder: Path, shift: float = 0.0) -> TrainConfig:
    """The same with a teacher of ImageNet's classes, which knows the photos' two; all of its logits shifted alike."""
    photos = folder / "photos"
    shutil.copytree(config.data.root, photos)
    for classes, name in zip(sorted(photos.iterdir()), ("n01440764", "n02102040"), strict=True):
        classes.rename(photos / name)
    teacher = TimmClassifier(TimmConfig(name="test_resnet", classes=1000, image_size=SIZE, token_head=False))
    with torch.no_grad():
        teacher.model.get_classifier().bias += shift
    save_model(teacher, folder / "teacher.safetensors")
    return replace(
        config,
        model=replace(config.model, classes=1000),
        data=replace(config.data, root=str(photos), validation=str(photos)),
        objective=replace(config.objective, teacher=str(folder / "teacher.safetensors")),
        schedule=replace(config.schedule, epochs=1),
    )


@pytest.mark.parametrize("make", [distilled, online])
def test_a_teacher_of_imagenets_classes_teaches_photos_of_a_few_of_them(data: Path, tmp_path: Path, make) -> None:
    config = of_imagenet(make(data), tmp_path)
    assert {*open_data(config).train.classes.tolist()} == {0, 217}
    train(config, tmp_path / "run", MACHINE, silent)
    assert len(read_classes(tmp_path / "run" / CLASSES)) == 1000


def test_a_teacher_whose_logits_lie_below_zero_is_warned_of(data: Path, tmp_path: Path) -> None:
    config = of_imagenet(online(data), tmp_path, shift=-9.0)
    sentence = f"the logits of annotator '{tmp_path / 'teacher.safetensors'}' lie below zero, where zero_fill takes "
    with pytest.warns(UserWarning, match=f"^{re.escape(sentence)}"):
        train(config, tmp_path / "run", MACHINE, silent)
    # Warnings are errors: by the other rule there is none.
    other = replace(config, objective=replace(config.objective, rule="probabilities"))
    train(other, tmp_path / "other", MACHINE, silent)
