"""Defaults for data sets of one's own, and which of them an annotator knows by name."""

from pathlib import Path

import pytest

from alltokens.annotate.class_map import class_names
from alltokens.data.order import Share
from alltokens.errors import UserError
from alltokens.models.timm_model import TimmConfig, published
from alltokens.models.zoo import find
from alltokens.plain import from_plain, to_plain
from alltokens.recipes.own_folder import (
    Extent,
    annotator_config,
    batch_for,
    extent_of,
    named_like,
    side_for,
    token_label_config,
)
from alltokens.sources.source import open_source
from alltokens.train.config import DataConfig, TrainConfig
from alltokens.train.schedule import learning_rate

from ..annotate.toys import photo_folder

DATA = DataConfig(root="images", held_out=0.2, labels="labels")
SMALL = Extent(images=290, classes=8, shorter_side=128, on_gpu=False)


@pytest.mark.parametrize("images", [4, 30, 290, 7_500, 60_000, 1_281_167])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_every_size_of_data_set_has_a_config_that_can_be_trained_and_written(images: int, on_gpu: bool):
    require_trainable(token_label_config(DATA, Extent(images, 10, 480, on_gpu), 1000), images, on_gpu)


@pytest.mark.parametrize(("images", "on_gpu"), [(4, False), (290, True), (1_281_167, True)])
def test_so_has_its_annotator(images: int, on_gpu: bool):
    config = annotator_config(DATA, "pip/efficientnet_lite0", Extent(images, 10, 28, on_gpu), "pip/efficientnet_lite0")
    require_trainable(config, images, on_gpu)


def require_trainable(config: TrainConfig, images: int, on_gpu: bool) -> None:
    steps = Share(batch=config.batch).batches(images)
    assert steps >= min(4, images // 2)
    # The schedule refuses rates that are above the run's own.
    assert learning_rate(config.schedule, config.optimizer.learning_rate, 0, steps) <= 1e-3
    assert from_plain(TrainConfig, to_plain(config)) == config
    assert config.precision == ("bf16" if on_gpu else "float32")


def test_the_model_grows_with_the_images_and_is_small_without_a_gpu():
    models = [
        token_label_config(DATA, Extent(images, 10, 480, on_gpu), 10).model
        for images, on_gpu in [(300, True), (7_500, True), (200_000, True), (200_000, False)]
    ]
    assert [(model.width, model.depth) for model in models] == [(192, 6), (240, 12), (384, 16), (192, 6)]
    assert models[1].stem == find("lvvit_t").stem
    assert all(model.token_head for model in models)


@pytest.mark.parametrize(
    ("images", "on_gpu", "policy", "colours", "erase"),
    [
        (7_500, True, None, 0.4, 0.0),
        (99_999, True, None, 0.4, 0.0),
        (100_000, True, "rand-m9-mstd0.5-inc1", 0.0, 0.25),
        (100_000, False, None, 0.0, 0.0),
    ],
)
def test_images_are_changed_as_much_as_a_run_has_time_for(
    images: int, on_gpu: bool, policy: str | None, colours: float, erase: float
):
    config = token_label_config(DATA, Extent(images, 10, 480, on_gpu), 10)
    changes = config.augment.policy, config.augment.color_jitter, config.objective.finish.erase
    assert changes == (policy, colours, erase)


@pytest.mark.parametrize(
    ("shorter_side", "on_gpu", "side"),
    [(28, True, 64), (128, True, 128), (130, False, 128), (200, True, 192), (480, True, 224), (480, False, 128)],
)
def test_the_model_sees_about_as_many_pixels_as_there_are(shorter_side: int, on_gpu: bool, side: int):
    assert side_for(Extent(1000, 10, shorter_side, on_gpu)) == side


def test_a_step_has_fewer_images_where_there_are_few():
    assert [batch_for(images, 32) for images in (4, 8, 15, 16, 64, 127, 128, 10_000)] == [2, 2, 2, 4, 16, 16, 32, 32]


def test_an_annotator_is_trained_on_plain_labels_with_its_own_normalisation():
    config = annotator_config(DATA, "timm/test_resnet", SMALL, epochs=3)
    known = published("test_resnet")
    assert isinstance(config.model, TimmConfig)
    assert (config.model.name, config.model.classes, config.model.token_head) == ("test_resnet", 8, False)
    assert (config.objective.finish.mean, config.objective.finish.std) == (known.mean, known.std)
    assert (config.objective.mix.kind, config.objective.finish.erase, config.augment.policy) == ("none", 0.0, None)
    assert (config.data.labels, config.data.held_out, config.schedule.epochs) == (None, 0.2, 3)


def test_an_annotator_from_scratch_is_trained_longer():
    scratch, from_weights = (annotator_config(DATA, "timm/test_resnet", SMALL, initial) for initial in (None, "x.pth"))
    assert scratch.schedule.epochs == 4 * from_weights.schedule.epochs
    assert from_weights.initial == "x.pth"


def test_a_network_of_another_kind_is_refused():
    with pytest.raises(UserError) as error:
        annotator_config(DATA, "resnet50", SMALL)
    assert str(error.value) == (
        "the annotator's network must be timm/NAME or one of pip/efficientnet_lite0, pip/efficientnet_lite1, "
        "pip/efficientnet_lite2; got 'resnet50'"
    )


def test_the_extent_is_that_of_the_images(tmp_path: Path):
    assert extent_of(open_source(str(photo_folder(tmp_path, 8))), on_gpu=False) == Extent(8, 2, 36, False)
    (tmp_path / "cat" / "000.png").write_bytes(b"")
    assert extent_of(open_source(str(tmp_path)), on_gpu=True).images == 8


def test_images_none_of_which_can_be_read_are_refused(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"")
    with pytest.raises(UserError) as error:
        extent_of(open_source(str(tmp_path)), on_gpu=False)
    assert str(error.value) == (
        f"none of the images of '{tmp_path}' that were tried can be read, such as 'b/1.png' (the image is empty)"
    )


def test_folders_with_ids_or_words_of_imagenet_are_known_and_its_other_classes_stay():
    imagenet = class_names(1000)
    kept = named_like(["n01440764", "golf_ball", "English Springer"], imagenet)
    assert kept is not None
    assert len(kept) == 1000
    assert kept[imagenet.index("n01440764")] == "n01440764"
    assert kept[imagenet.index("n03445777")] == "golf_ball"
    assert kept[imagenet.index("n02102040")] == "English Springer"
    assert sum(one == other for one, other in zip(kept, imagenet, strict=True)) == 998


@pytest.mark.parametrize(
    "folders",
    [
        ["n01440764", "my own thing"],
        ["0", "1"],  # digits, not the first classes of ImageNet
        ["crane", "n01440764"],  # a bird or a machine
        ["tench", "n01440764"],  # one class twice
    ],
)
def test_folders_that_are_not_all_beyond_doubt_are_not_known(folders: list[str]):
    assert named_like(folders, class_names(1000)) is None
