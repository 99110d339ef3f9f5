"""Samples are functions of their place; evaluation shows what timm shows; unreadable images end nothing."""

import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from timm.data import create_transform
from timm.data.transforms import ResizeKeepRatio
from torchvision.transforms.functional import center_crop, pil_to_tensor

from alltokens.augment.pipeline import Augment, AugmentConfig, apply
from alltokens.data import samples as samples_module
from alltokens.data.order import epoch_order, sample_seed
from alltokens.data.samples import (
    EvaluationConfig,
    EvaluationSamples,
    class_numbers,
    model_classes,
    show_middle,
)
from alltokens.errors import UserError
from alltokens.labels.align import token_targets
from alltokens.sources.source import Source

from ..sources.pictures import noise
from .pictures import AUGMENT, CLASSES, fields_of, generator, rows_of, samples_of, source_of, store_for

# Training


def test_a_sample_is_its_image_as_drawn_from_the_seed_of_its_place() -> None:
    source = source_of()
    sample = samples_of(source, seed=5).sample(epoch=2, place=4, index=9)
    seed, image = sample_seed(5, 2, 4), source.image(9)
    draw = Augment(AUGMENT).draw(image.height, image.width, generator(seed))
    assert torch.equal(sample.image, pil_to_tensor(apply(draw, image)))
    assert torch.equal(sample.view, draw.view.normalized())
    assert (sample.number, sample.key, sample.seed) == (1, "class1/09.png", seed)


def test_a_batch_has_the_samples_of_its_places_in_their_order(tmp_path: Path) -> None:
    samples, order = samples_of(source_of(), tmp_path / "store"), epoch_order(11, 7, 3)
    batch = samples.batch(3, order, range(4, 8))
    assert len(batch) == 4
    assert batch.images.shape == (4, 3, 16, 24)
    assert batch.skipped == ()
    for row, place in enumerate(range(4, 8)):
        sample = samples.sample(3, place, int(order[place]))
        assert torch.equal(batch.images[row], sample.image)
        assert torch.equal(batch.views[row], sample.view)
        assert (batch.classes[row], batch.seeds[row], batch.keys[row]) == (sample.number, sample.seed, sample.key)


def test_score_maps_are_those_of_the_keys(tmp_path: Path) -> None:
    source = source_of()
    batch = samples_of(source, tmp_path / "store").batch(0, torch.arange(11), range(11))
    maps = store_for(source, tmp_path / "store").read(source.keys)
    assert batch.score_maps is not None
    assert batch.keys == tuple(source.keys)
    for name in ("classes", "logits", "normalizer", "views", "grids"):
        assert torch.equal(getattr(batch.score_maps, name), getattr(maps, name))
    assert batch.score_maps.grids[[4, 10]].tolist() == [[0, 0], [0, 0]]
    assert token_targets(batch.score_maps, batch.views, (2, 3), 7).labelled.shape == (11, 6)


def test_without_a_store_there_are_no_score_maps() -> None:
    assert samples_of(source_of()).batch(0, torch.arange(11), range(2)).score_maps is None


def test_classes_are_numbered_as_the_store_numbers_them(tmp_path: Path) -> None:
    # The fourth image has no class; the others are of class5 and class1 in turn.
    source = source_of(6)
    assert samples_of(source, tmp_path / "store").classes.tolist() == [5, 1, 5, -1, 5, 1]
    assert samples_of(source).classes.tolist() == [0, 1, 0, -1, 0, 1]
    assert len(model_classes(source, store_for(source, tmp_path / "store"))) == 7
    assert model_classes(source, None) == CLASSES


def test_a_data_set_without_classes_has_none_in_the_store_either(tmp_path: Path) -> None:
    source = replace(source_of(4), classes=(), labels=[-1] * 4)
    assert samples_of(source, tmp_path / "store").classes.tolist() == [-1] * 4


def test_samples_are_the_same_after_a_pickle(tmp_path: Path) -> None:
    samples = samples_of(source_of(), tmp_path / "store")
    there = pickle.loads(pickle.dumps(samples))
    assert fields_of(there.batch(1, torch.arange(11), range(6))) == fields_of(
        samples.batch(1, torch.arange(11), range(6))
    )


def test_a_store_of_other_images_is_refused(tmp_path: Path) -> None:
    store = store_for(source_of(5), tmp_path / "store")
    with pytest.raises(UserError) as error:
        samples_module.TrainSamples(source_of(7), store, AUGMENT, 0)
    assert str(error.value) == (
        f"label store '{tmp_path / 'store'}' lacks 2 of the 7 images of 'photos', "
        "such as 'class1/05.png', 'class5/06.png'; annotate this data set"
    )


def test_a_store_without_the_classes_is_refused(tmp_path: Path) -> None:
    source = source_of(5)
    with pytest.raises(UserError) as error:
        samples_of(replace(source, classes=("cat", "class1")), tmp_path / "store")
    assert str(error.value) == (
        f"label store '{tmp_path / 'store'}' does not name 1 of the 2 classes of 'photos', such as 'cat'; "
        "annotate with a class map"
    )


def test_a_mistyped_policy_is_refused_before_any_image_is_read() -> None:
    with pytest.raises(UserError, match=r"^policy must be one of timm's strings, .*; got 'rand-m9-oops'$"):
        samples_of(source_of(), augment=AugmentConfig(policy="rand-m9-oops"))


# Images that cannot be read


def test_the_image_before_stands_in_for_one_that_cannot_be_read(tmp_path: Path) -> None:
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    whole, broken = samples_of(source_of(6)), samples_of(source_of(6, broken=[0, 4, 5]), tmp_path / "store")
    batch = broken.batch(1, order, range(6))
    # Image 4 is first, and the one before it is the last; two in a row have the same one before them.
    shown = [3, 2, 2, 2, 1, 3]
    assert batch.keys == tuple(whole.source.keys[index] for index in shown)
    assert batch.skipped == tuple(whole.source.keys[index] for index in (4, 0, 5))
    # Its own seed varies what stands in, so that nothing is seen twice.
    expected = [whole.sample(1, place, index) for place, index in enumerate(shown)]
    assert all(torch.equal(image, sample.image) for image, sample in zip(batch.images, expected, strict=True))
    assert batch.seeds.tolist() == [sample_seed(7, 1, place) for place in range(6)]
    assert batch.classes.tolist() == [-1, 5, 5, 5, 1, -1]
    assert batch.score_maps is not None
    assert torch.equal(batch.score_maps.logits, broken.store.read(batch.keys).logits)


def test_what_stands_in_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    samples, order = samples_of(source_of(12, broken=[1, 5, 6, 7]), tmp_path / "store"), epoch_order(12, 7, 0)
    together = samples.batch(0, order, range(12))
    apart = [samples.batch(0, order, range(start, start + 2)) for start in range(0, 12, 2)]
    assert [row for batch in apart for row in rows_of(batch)] == rows_of(together)
    assert tuple(key for batch in apart for key in batch.skipped) == together.skipped
    assert set(together.skipped) == {samples.source.keys[index] for index in (1, 5, 6, 7)}


def test_data_without_a_readable_image_is_refused() -> None:
    samples = samples_of(source_of(3, broken=[0, 1, 2]))
    with pytest.raises(UserError) as error:
        samples.batch(0, torch.arange(3), range(2))
    assert str(error.value) == (
        "3 images of 'photos' in a row cannot be read, such as 'class1/01.png' (the image is damaged or not one of "
        "JPEG, PNG, WEBP, GIF, BMP, TIFF, PPM); see that they are there"
    )


def test_a_long_row_of_unreadable_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "FURTHEST", 4)
    samples = samples_of(source_of(11, broken=[2, 3, 4, 5]))
    assert samples.batch(0, torch.arange(11), range(5)).skipped == ("class5/02.png", "class1/03.png", "class5/04.png")
    with pytest.raises(UserError, match=r"^4 images of 'photos' in a row cannot be read, such as 'class5/02.png' \("):
        samples.batch(0, torch.arange(11), range(5, 6))


# Evaluation


def soft(height: int, width: int) -> Image.Image:
    """Of low contrast: where bicubic overshoots, the order in which Pillow takes the axes shows in its clipping."""
    return Image.fromarray(noise(height, width) // 4 + 96)


SHAPES = [(60, 80), (80, 60), (50, 50), (33, 100), (7, 5), (1, 1), (255, 256), (29, 29)]


def timms(image: Image.Image, config: EvaluationConfig) -> torch.Tensor:
    transform = create_transform(
        (3, *config.size), crop_pct=config.crop, interpolation=config.interpolation, normalize=False
    )
    return transform(image)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("crop", [0.875, 0.9, 1.0])
def test_evaluation_shows_timms_pixels(shape: tuple[int, int], interpolation: str, crop: float) -> None:
    image = Image.fromarray(noise(*shape))
    config = EvaluationConfig(size=(29, 29), crop=crop, interpolation=interpolation)
    assert torch.equal(pil_to_tensor(show_middle(image, config)[0]), timms(image, config))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [(24, 40), (40, 24), (31, 30)])
def test_evaluation_shows_timms_pixels_in_rectangles(shape: tuple[int, int], size: tuple[int, int]) -> None:
    image = Image.fromarray(noise(*shape))
    config = EvaluationConfig(size=size, interpolation="bilinear")
    assert torch.equal(pil_to_tensor(show_middle(image, config)[0]), timms(image, config))
    # For rectangles timm's transform is bilinear whatever it is asked for; its parts are not.
    resized = ResizeKeepRatio([math.floor(side / 0.9) for side in size], interpolation="bicubic")(image)
    shown, _ = show_middle(image, EvaluationConfig(size=size, interpolation="bicubic"))
    assert np.array_equal(np.asarray(shown), np.asarray(center_crop(resized, list(size))))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40), st.integers(1, 40), st.floats(0.3, 1.0))
def test_evaluation_shows_timms_pixels_of_any_shape(height: int, width: int, rows: int, columns: int, crop: float):
    image = Image.fromarray(noise(height, width))
    config = EvaluationConfig(size=(rows, columns), crop=crop, interpolation="bilinear")
    assert torch.equal(pil_to_tensor(show_middle(image, config)[0]), timms(image, config))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [(29, 29), (24, 40)])
def test_the_view_of_evaluation_is_what_is_seen(shape: tuple[int, int], size: tuple[int, int]) -> None:
    image = soft(*shape)
    shown, view = show_middle(image, EvaluationConfig(size=size))
    assert view.size == size
    through = np.asarray(view.apply(image, "bicubic")).astype(int)
    assert np.abs(through - np.asarray(shown)).max() <= 1


def test_a_strip_too_long_for_memory_is_shown_by_its_view(monkeypatch: pytest.MonkeyPatch) -> None:
    config, image = EvaluationConfig(size=(8, 8)), soft(2, 300)
    whole, view = show_middle(image, config)
    monkeypatch.setattr(samples_module, "LARGEST", 1000)
    part, same = show_middle(image, config)
    assert same == view
    assert np.abs(np.asarray(part).astype(int) - np.asarray(whole)).max() <= 1
    # 71 x 1.4 billion pixels if it were resized as a whole.
    monkeypatch.undo()
    thin, _ = show_middle(Image.new("RGB", (20_000_000, 1), (10, 20, 30)), replace(config, size=(64, 64)))
    assert thin.getextrema() == ((10, 10), (20, 20), (30, 30))


def test_evaluation_leaves_out_what_cannot_be_read_and_names_it() -> None:
    config = EvaluationConfig(size=(8, 8))
    whole = EvaluationSamples(source_of(), CLASSES, config)
    broken = EvaluationSamples(source_of(broken=[2, 3]), CLASSES, config)
    batch = broken.batch(range(1, 6))
    assert batch.keys == ("class1/01.png", "class5/04.png", "class1/05.png")
    assert batch.skipped == ("class5/02.png", "class1/03.png")
    kept = [rows_of(whole.batch(range(1, 6)))[row] for row in (0, 3, 4)]
    assert rows_of(batch) == kept
    assert batch.seeds.tolist() == [0, 0, 0]
    empty = broken.batch(range(2, 4))
    assert (len(empty), empty.images.shape, empty.skipped) == (0, (0, 3, 8, 8), batch.skipped)


def test_evaluation_numbers_classes_as_the_model_does() -> None:
    source, names = source_of(4), [f"class{number}" for number in range(7)]
    assert EvaluationSamples(source, names, EvaluationConfig()).classes.tolist() == [5, 1, 5, -1]
    with pytest.raises(UserError) as error:
        class_numbers(source, ("class1", "cat"))
    assert str(error.value) == (
        "'photos' has 1 classes that are not among the model's 2, such as 'class5'; the model's are such as "
        "'class1', 'cat'"
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"size": (0, 8)}, "size must be above 0; got size=(0, 8)"),
        ({"crop": 0.0}, "crop must be above 0 and at most 1; got crop=0.0"),
        ({"crop": 1.1}, "crop must be above 0 and at most 1; got crop=1.1"),
    ],
)
def test_a_field_of_evaluation_out_of_range_is_refused(fields: dict, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        EvaluationConfig(**fields)
    assert str(error.value) == sentence


def test_a_data_set_without_images_cannot_be_opened() -> None:
    with pytest.raises(UserError, match=r"^there is no image in 'photos'; files that end in "):
        Source("photos", [], [], (), source_of().load)
