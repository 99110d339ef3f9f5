"""Samples are functions of their place; evaluation shows what timm shows; unreadable images end nothing."""

import io
import math
import pickle
from dataclasses import dataclass, replace
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
    show_middle,
)
from alltokens.errors import UserError
from alltokens.labels.align import token_targets
from alltokens.sources.decode import Opened
from alltokens.sources.source import Source

from ..sources.pictures import encoded, noise
from .pictures import AUGMENT, CLASSES, SIZE, fields_of, generator, rows_of, samples_of, source_of, store_for

# Training


def test_a_sample_is_its_image_as_drawn_from_the_seed_of_its_place() -> None:
    source = source_of()
    sample = samples_of(source, seed=5).sample(epoch=2, place=4, index=9)
    seed, image = sample_seed(5, 2, 4), source.image(9)
    draw = Augment(AUGMENT, SIZE).draw(image.height, image.width, generator(seed))
    assert torch.equal(sample.image, pil_to_tensor(apply(draw, image)))
    assert torch.equal(sample.view, draw.view.normalized())
    assert (sample.number, sample.key, sample.seed) == (1, "class1/09.png", seed)


# JPEGs are decoded at a scale


def scene(height: int, width: int) -> np.ndarray:
    """Painted: large discs of bright colours on a slope, whose edges give away a shift of half a pixel."""
    y, x = np.mgrid[:height, :width] + 0.5
    picture = np.stack((255 * x / width, 255 * y / height, np.full_like(x, 90)), 2)
    for row, column, colour in [(0.3, 0.2, (250, 30, 30)), (0.6, 0.7, (20, 240, 60)), (0.95, 0.4, (30, 40, 250))]:
        disc = (x - column * width) ** 2 + (y - row * height) ** 2 < (0.18 * height) ** 2
        picture[disc] = colour
    return picture.round().astype(np.uint8)


@dataclass(frozen=True)
class Scenes:
    """One picture of odd sides, as a JPEG or without loss."""

    format: str

    def __call__(self, index: int) -> bytes:
        picture = Image.open(io.BytesIO(encoded(scene(203, 301), "JPEG", quality=95)))
        return encoded(picture, "JPEG", quality="keep") if self.format == "JPEG" else encoded(picture)


def scenes(format: str, size: tuple[int, int]) -> samples_module.TrainSamples:
    source = Source("scenes", [str(index) for index in range(40)], [0] * 40, ("one",), Scenes(format))
    return samples_of(source, augment=AugmentConfig(policy="rand-m9-n2-p1-tweights"), size=size)


# A quarter of a pixel of what is decoded would be above each of these.
@pytest.mark.parametrize(("side", "largest"), [(12, 2.5), (24, 1.4), (48, 0.9)])
def test_a_jpeg_that_is_shrunk_is_decoded_smaller_and_shows_the_same(side: int, largest: float) -> None:
    jpeg, whole = (scenes(format, (side, side)) for format in ("JPEG", "PNG"))
    errors, means = [], []
    for index in range(40):
        seen, expected = (samples.sample(0, index, index) for samples in (jpeg, whole))
        assert torch.equal(seen.view, expected.view)
        difference = seen.image.int() - expected.image.int()
        errors.append(difference.abs().float().mean())
        means.append(difference.float().mean())
    assert np.mean(errors) < largest
    assert max(errors) < 4 * largest
    assert abs(np.mean(means)) < 0.3


def test_the_scale_is_that_of_the_axis_that_shrinks_less(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        Opened,
        "decoded",
        lambda self, scale=1: asked.append(scale) or Image.new("RGB", (-(-301 // scale), -(-203 // scale))),
    )
    # Of 203 rows and 301 columns, all of which are seen.
    for size in [(203, 301), (102, 151), (101, 150), (101, 20), (50, 75), (25, 37), (2, 3)]:
        augment = AugmentConfig(scale=(1.0, 1.0), ratio=(301 / 203, 301 / 203), policy=None)
        source = Source("scenes", ["a"], [0], ("one",), Scenes("JPEG"))
        samples_of(source, augment=augment, size=size).sample(0, 0, 0)
    assert asked == [1, 1, 2, 2, 4, 8, 8]


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


# What is left to the device


def test_a_batch_that_is_left_to_the_device_becomes_the_one_of_the_workers(tmp_path: Path) -> None:
    augment = AugmentConfig(interpolation="bilinear", policy="rand-m9-n3-p0.7-tweights")
    samples, order = samples_of(source_of(), tmp_path / "store", augment=augment), epoch_order(11, 7, 3)
    expected, left = (samples.left_to(where).batch(3, order, range(2, 10)) for where in ("workers", "device"))
    assert expected.boxes is None
    assert left.boxes is not None
    assert left.images.numel() == 0
    batch = left.to("cpu").augmented()
    assert batch.boxes is None
    # Recoloured by the operations of another level, as steep as they are, only few pixels are far off.
    share = ((batch.images.int() - expected.images.int()).abs() <= 4).double().mean()
    assert share > 0.9
    assert fields_of(replace(batch, images=expected.images)) == fields_of(expected)
    assert batch.augmented() is batch


def test_only_what_is_seen_is_handed_over() -> None:
    augment = AugmentConfig(scale=(0.1, 0.1), ratio=(1.0, 1.0), policy=None)
    samples = samples_of(source_of(), augment=augment, size=(8, 8))
    batch = samples.left_to("device").batch(0, torch.arange(11), range(8))
    assert batch.boxes is not None
    # A tenth of an image of 12 x 20 is about 5 x 5, and the kernel reaches two pixels further.
    assert len(batch.boxes.pixels) <= 8 * 9 * 9
    assert max(max(draw.view.source) for draw in batch.boxes.draws) <= 9


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


def test_labels_are_read_where_the_image_is_seen_or_where_the_released_code_reads_them(tmp_path: Path) -> None:
    exact = samples_of(source_of(), tmp_path / "store")
    published = samples_module.TrainSamples(
        exact.source, exact.store, exact.store.classes, AUGMENT, SIZE, exact.seed, alignment="published"
    )
    one, other = (samples.batch(0, torch.arange(11), range(11)) for samples in (exact, published))
    assert torch.equal(one.images, other.images)
    for place, (view, moved) in enumerate(zip(one.views, other.views, strict=True)):
        image = exact.source.image(place)
        draw = exact.augment.draw(image.height, image.width, torch.Generator().manual_seed(int(one.seeds[place])))
        top, left, height, width = draw.crop
        # The corners of the crop, rows and columns exchanged, and what follows the crop as it was.
        within = (view - torch.tensor([[0, 0, left], [0, 0, top]])) / torch.tensor([[width], [height]])
        expected = within * torch.tensor([[height], [width]]) + torch.tensor([[0, 0, top], [0, 0, left]])
        torch.testing.assert_close(moved, expected)


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
        samples_module.TrainSamples(source_of(7), store, store.classes, AUGMENT, SIZE, 0)
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


def timms(image: Image.Image, config: EvaluationConfig, size: tuple[int, int]) -> torch.Tensor:
    transform = create_transform((3, *size), crop_pct=config.crop, interpolation=config.interpolation, normalize=False)
    return transform(image)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("crop", [0.875, 0.9, 1.0])
def test_evaluation_shows_timms_pixels(shape: tuple[int, int], interpolation: str, crop: float) -> None:
    image = Image.fromarray(noise(*shape))
    config, size = EvaluationConfig(crop=crop, interpolation=interpolation), (29, 29)
    assert torch.equal(pil_to_tensor(show_middle(image, config, size)[0]), timms(image, config, size))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [(24, 40), (40, 24), (31, 30)])
def test_evaluation_shows_timms_pixels_in_rectangles(shape: tuple[int, int], size: tuple[int, int]) -> None:
    image = Image.fromarray(noise(*shape))
    config = EvaluationConfig(interpolation="bilinear")
    assert torch.equal(pil_to_tensor(show_middle(image, config, size)[0]), timms(image, config, size))
    # For rectangles timm's transform is bilinear whatever it is asked for; its parts are not.
    resized = ResizeKeepRatio([math.floor(side / 0.9) for side in size], interpolation="bicubic")(image)
    shown, _ = show_middle(image, EvaluationConfig(interpolation="bicubic"), size)
    assert np.array_equal(np.asarray(shown), np.asarray(center_crop(resized, list(size))))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40), st.integers(1, 40), st.floats(0.3, 1.0))
def test_evaluation_shows_timms_pixels_of_any_shape(height: int, width: int, rows: int, columns: int, crop: float):
    image = Image.fromarray(noise(height, width))
    config, size = EvaluationConfig(crop=crop, interpolation="bilinear"), (rows, columns)
    assert torch.equal(pil_to_tensor(show_middle(image, config, size)[0]), timms(image, config, size))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [(29, 29), (24, 40)])
def test_the_view_of_evaluation_is_what_is_seen(shape: tuple[int, int], size: tuple[int, int]) -> None:
    image = soft(*shape)
    shown, view = show_middle(image, EvaluationConfig(), size)
    assert view.size == size
    through = np.asarray(view.apply(image, "bicubic")).astype(int)
    assert np.abs(through - np.asarray(shown)).max() <= 1


def test_a_strip_too_long_for_memory_is_shown_by_its_view(monkeypatch: pytest.MonkeyPatch) -> None:
    config, image = EvaluationConfig(), soft(2, 300)
    whole, view = show_middle(image, config, (8, 8))
    monkeypatch.setattr(samples_module, "LARGEST", 1000)
    part, same = show_middle(image, config, (8, 8))
    assert same == view
    assert np.abs(np.asarray(part).astype(int) - np.asarray(whole)).max() <= 1
    # 71 x 1.4 billion pixels if it were resized as a whole.
    monkeypatch.undo()
    thin, _ = show_middle(Image.new("RGB", (20_000_000, 1), (10, 20, 30)), config, (64, 64))
    assert thin.getextrema() == ((10, 10), (20, 20), (30, 30))


def test_evaluation_leaves_out_what_cannot_be_read_and_names_it() -> None:
    whole, broken = (
        EvaluationSamples(source_of(broken=which), CLASSES, EvaluationConfig(), (8, 8)) for which in ([], [2, 3])
    )
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
    assert EvaluationSamples(source, names, EvaluationConfig(), SIZE).classes.tolist() == [5, 1, 5, -1]
    with pytest.raises(UserError) as error:
        class_numbers(source, ("class1", "cat"))
    assert str(error.value) == (
        "'photos' has 1 classes that are not among the model's 2, such as 'class5'; the model's are such as "
        "'class1', 'cat'"
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"crop": 0.0}, "crop must be from 0.001 to 1; got crop=0.0"),
        ({"crop": 1.1}, "crop must be from 0.001 to 1; got crop=1.1"),
    ],
)
def test_a_field_of_evaluation_out_of_range_is_refused(fields: dict, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        EvaluationConfig(**fields)
    assert str(error.value) == sentence


def test_a_data_set_without_images_cannot_be_opened() -> None:
    with pytest.raises(UserError, match=r"^there is no image in 'photos'; files that end in "):
        Source("photos", [], [], (), source_of().load)
