"""What is drawn for an image against timm's transforms under the same seeds, and what becomes of the image."""

import os
import random
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import unwrap
from itertools import pairwise
from math import ceil, inf, nan
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from timm.data import auto_augment
from timm.data.transforms import RandomResizedCropAndInterpolation
from timm.data.transforms_factory import transforms_imagenet_train
from torch import Tensor
from torchvision.transforms import ColorJitter
from torchvision.transforms import functional as TF

from alltokens.augment.geometric import GEOMETRIC
from alltokens.augment.photometric import Operation, apply_pillow
from alltokens.augment.pipeline import (
    Augment,
    AugmentConfig,
    Draw,
    apply,
    apply_batch,
    chosen,
    drawn_by,
    recording_policy,
    timms_randomness,
)
from alltokens.errors import UserError
from alltokens.geometry.view import View
from alltokens.labels.align import token_targets
from alltokens.labels.score_map import ScoreMap

DATA = Path(os.environ.get("ALLTOKENS_DATA", Path(__file__).parents[2] / "../shared/data"))
POLICIES = [
    "rand-m9-mstd0.5-inc1",
    "rand-m9-n3-p0.7-mstd101",
    "rand-m15-mmax20-mstd1",
    "rand-n1-p1",
    "rand-m7-tweights-inc1",
    "rand-m6-n3-t3aw-inc1",
    "rand-t3a-inc0",
    "original",
    "originalr-mstd0.5",
    "v0",
    "v0r-mstd2",
    "3a",
]
SIZES = [(60, 80), (80, 60), (64, 64), (30, 120)]
each_size = pytest.mark.parametrize("size", SIZES)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@contextmanager
def numpys_randomness(seed: int) -> Iterator[None]:
    """For timm's own RandAugment, which has NumPy choose its operations."""
    state = np.random.get_state()
    np.random.seed(seed)
    yield
    np.random.set_state(state)


def draws(
    config: AugmentConfig, count: int, of: tuple[int, int] = (60, 80), size: tuple[int, int] = (32, 48)
) -> list[Draw]:
    source, augment = generator(0), Augment(config, size)
    return [augment.draw(*of, source) for _ in range(count)]


def is_likely(successes: int, tries: int, chance: float) -> bool:
    """Whether so many successes lie within four standard deviations of what is expected."""
    return abs(successes - tries * chance) <= 4 * (tries * chance * (1 - chance)) ** 0.5


def smooth(size: tuple[int, int], phase: float = 0.0) -> Tensor:
    """Waves of different length and direction in each channel, with a slight texture."""
    y, x = torch.meshgrid(torch.linspace(0, 1, size[0]), torch.linspace(0, 1, size[1]), indexing="ij")
    red, green, blue = (5 * x + 2 * y + phase).sin(), (6 * y - 3 * x + phase).cos(), (4 * x * y + phase).sin()
    return (128 + 100 * torch.stack((red, green, blue)) + 5 * (40 * x).sin() * (30 * y).cos()).byte()


def pillow(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


# Policies


def operations_of(policy) -> list:
    """All operations of one of timm's policies."""
    return policy.ops if hasattr(policy, "ops") else [operation for group in policy.policy for operation in group]


def unchecked(policy):
    """Our policy without the checks of annotations, which would draw from the same random numbers."""
    for operation in operations_of(policy):
        operation.aug_fn = partial(unwrap(operation.aug_fn.func), *operation.aug_fn.args)
    return policy


class TimmsLog:
    """timm's own policy for a string, run on an image, and what it called with what."""

    def __init__(self, policy: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        # A fixed interpolation, because timm draws another for each operation and ours has one resampling only.
        stages = transforms_imagenet_train(size, auto_augment=policy, interpolation="bilinear", separate=True)
        self.policy = stages[1].transforms[0]
        self.called: list[Operation] = []
        self.fills: set[tuple[int, int, int]] = set()
        for operation in operations_of(self.policy):
            operation.aug_fn = self.logged(operation.aug_fn)
        monkeypatch.setattr(auto_augment.ImageFilter, "GaussianBlur", self.logged_blur(ImageFilter.GaussianBlur))

    def logged(self, function):
        def call(image, *arguments, **settings):
            kind = function.__name__
            self.fills.add(settings["fillcolor"])
            if "blur" not in kind:
                self.called.append(Operation(kind, arguments))
            # Newer Pillows refuse to keep no bit.
            return image if (kind, *arguments) == ("posterize", 0) else function(image, *arguments, **settings)

        return call

    def logged_blur(self, blur):
        def create(radius):
            self.called.append(Operation("gaussian_blur", (radius,)))
            return blur(radius)

        return create

    def run(self, image: Image.Image) -> tuple[Operation, ...]:
        self.called.clear()
        self.policy(image)
        return tuple(self.called)


@pytest.mark.parametrize("size", [(32, 32), (32, 48)])
@pytest.mark.parametrize("policy", POLICIES)
def test_operations_are_those_that_timm_applies_under_the_same_seed(
    policy: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = AugmentConfig(policy=policy)
    timm, ours = TimmsLog(policy, size, monkeypatch), unchecked(recording_policy(config, size))
    image = pillow(smooth((8, 9)))
    seen = set()
    for seed in range(150):
        with timms_randomness(generator(seed)), numpys_randomness(seed):
            expected = timm.run(image)
        with timms_randomness(generator(seed)), numpys_randomness(seed):
            drawn = ours(())
        assert drawn == expected
        seen.update(operation.kind for operation in drawn)
    assert len(seen) >= (3 if "3a" in policy and "3aw" not in policy else 7)
    assert timm.fills == {config.fill}
    for mine, theirs in zip(operations_of(ours), operations_of(timm.policy), strict=True):
        assert mine.hparams.items() <= theirs.hparams.items()


def test_a_policy_splits_into_the_view_and_the_operations_in_their_order() -> None:
    config = AugmentConfig(policy="rand-m9-n4-p1-mstd0.5", interpolation="bilinear", color_jitter=0.3)
    augment, policy = Augment(config, (32, 48)), recording_policy(config, (32, 48))
    for seed in range(100):
        draw = augment.draw(60, 80, generator(seed))
        with timms_randomness(generator(seed)):
            box = RandomResizedCropAndInterpolation.get_params(Image.new("L", (80, 60)), config.scale, config.ratio)
            flip, _ = random.random() < 0.5, random.random()
            drawn = drawn_by(policy)
        view = View.of(60, 80).crop(*box).resize(32, 48)
        view = view.hflip() if flip else view
        for kind, arguments in drawn:
            view = GEOMETRIC[kind](view, *arguments) if kind in GEOMETRIC else view
        assert draw.view == view
        colours = tuple(operation for operation in drawn if operation.kind not in GEOMETRIC)
        assert draw.operations[:-3] == colours
        assert {operation.kind for operation in draw.operations[-3:]} == {"brightness", "contrast", "color"}


def test_each_operation_is_as_frequent_and_as_strong_as_the_string_says() -> None:
    count = 4000
    drawn = draws(AugmentConfig(policy="rand-m9-mstd0.5-inc1"), count)
    kinds = Counter(operation.kind for draw in drawn for operation in draw.operations)
    # Two of fifteen operations, each with a chance of one half.
    assert len(kinds) == 10
    assert all(is_likely(kinds[kind], 2 * count, 1 / 30) for kind in kinds)
    # Rotation and the two shears turn a view.
    assert is_likely(sum(draw.view.is_axis_aligned for draw in drawn), count, (1 - 3 / 30) ** 2)
    factors = [
        operation.arguments[0] - 1
        for draw in drawn
        for operation in draw.operations
        if operation.kind in ("brightness", "contrast", "color", "sharpness")
    ]
    # Magnitude 9 of 10 is 0.81 up or down; its spread of 0.5 is 0.045, less what is cut off at 10.
    assert is_likely(sum(factor > 0 for factor in factors), len(factors), 0.5)
    assert np.mean(np.abs(factors)) == pytest.approx(0.81, abs=0.008)
    assert np.std(np.abs(factors)) == pytest.approx(0.044, abs=0.005)


@pytest.mark.parametrize("policy", ["rand-m9-n3", "rand-m7-n3-tweights-inc1", "rand-m6-n3-t3aw-inc1"])
def test_operations_are_chosen_with_the_chances_that_timm_gives_numpy(policy: str) -> None:
    augment, count = recording_policy(AugmentConfig(policy=policy), (224, 224)), 6000
    names = [operation.name for operation in augment.ops]
    with timms_randomness(generator(0)):
        ours = [tuple(operation.name for operation in chosen(augment)) for _ in range(count)]
    weights, source = augment.choice_weights, np.random.default_rng(0)
    theirs = [tuple(source.choice(names, 3, replace=weights is None, p=weights)) for _ in range(count)]
    assert all(len(set(names)) == 3 for names in ours) == (weights is not None)
    for part in (slice(0, 1), slice(1, 2), slice(2, 3), slice(0, 2)):
        one, other = (Counter(names[part] for names in drawn) for drawn in (ours, theirs))
        for name in one.keys() | other.keys():
            # The difference of two counts has twice the variance of one.
            assert abs(one[name] - other[name]) <= 5 * (one[name] + other[name] + 1) ** 0.5


# Crops, flips, interpolation


@each_size
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.9, 1.0)])
def test_crop_boxes_are_timms_under_the_same_seed(size: tuple[int, int], scale: tuple[float, float]) -> None:
    config = AugmentConfig(scale=scale, ratio=(0.5, 1.5), hflip=0.0, policy=None)
    image, augment = Image.new("RGB", size[::-1]), Augment(config, (32, 48))
    boxes = set()
    for seed in range(100):
        with timms_randomness(generator(seed)):
            box = RandomResizedCropAndInterpolation.get_params(image, scale, (0.5, 1.5))
        assert augment.draw(*size, generator(seed)).view == View.of(*size).crop(*box).resize(32, 48)
        boxes.add(box)
    # No crop of nine tenths of a panorama has a ratio of at most 1.5: timm takes the middle then.
    assert len(boxes) == 1 if (size, scale[0]) == ((30, 120), 0.9) else len(boxes) > 50


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_crop_shows_what_timms_crop_shows(interpolation: str) -> None:
    config = AugmentConfig(scale=(0.3, 1.0), interpolation=interpolation, hflip=0.0, policy=None)
    image = pillow(smooth((60, 80)))
    crop = RandomResizedCropAndInterpolation((32, 48), config.scale, config.ratio, interpolation)
    for seed in range(20):
        with timms_randomness(generator(seed)):
            theirs = tensor(crop(image)).int()
        draw = Augment(config, (32, 48)).draw(60, 80, generator(seed))
        # timm cuts before it resizes, so that what the kernel would reach beside the crop is missing.
        edge = ceil(2 * max(1, 1 / draw.view.matrix[0][0], 1 / draw.view.matrix[1][1]))
        difference = (tensor(apply(draw, image)).int() - theirs)[:, edge:-edge, edge:-edge].abs()
        # Pillow rounds between rows and columns, and a box of an image not always as the same box cut out.
        assert difference.max() <= 2
        assert (difference <= 1).double().mean() > 0.99


@pytest.mark.parametrize(("hflip", "vflip"), [(0.5, 0.0), (0.2, 0.7), (1.0, 1.0)])
def test_flips_have_their_chances_and_do_not_depend_on_each_other(hflip: float, vflip: float) -> None:
    count = 3000
    drawn = [draw.view.matrix for draw in draws(AugmentConfig(hflip=hflip, vflip=vflip, policy=None), count)]
    across, down = [row[0][0] < 0 for row in drawn], [row[1][1] < 0 for row in drawn]
    assert is_likely(sum(across), count, hflip)
    assert is_likely(sum(down), count, vflip)
    assert is_likely(sum(x and y for x, y in zip(across, down, strict=True)), count, hflip * vflip)
    assert is_likely(sum(x and y for x, y in pairwise(across)), count - 1, hflip**2)


def test_the_kernel_is_one_of_two_or_the_one_asked_for() -> None:
    kernels = Counter(draw.interpolation for draw in draws(AugmentConfig(policy=None), 2000))
    assert set(kernels) == {"bilinear", "bicubic"}
    assert is_likely(kernels["bicubic"], 2000, 0.5)
    for asked in ("bilinear", "bicubic"):
        assert {draw.interpolation for draw in draws(AugmentConfig(interpolation=asked), 50)} == {asked}


# Colour jitter


@pytest.mark.parametrize("strength", [0.3, 1.4])
def test_colour_jitter_has_torchvisions_ranges_and_every_order(strength: float) -> None:
    theirs = ColorJitter(strength, strength, strength)
    ranges = {"brightness": theirs.brightness, "contrast": theirs.contrast, "color": theirs.saturation}
    count = 3000
    operations = [draw.operations for draw in draws(AugmentConfig(policy=None, color_jitter=strength), count)]
    orders = Counter(tuple(operation.kind for operation in drawn) for drawn in operations)
    assert len(orders) == 6
    assert all(is_likely(times, count, 1 / 6) for times in orders.values())
    for kind, (low, high) in ranges.items():
        factors = np.array([x.arguments[0] for drawn in operations for x in drawn if x.kind == kind])
        shares = (factors - low) / (high - low)
        assert 0 <= shares.min() < 0.01 < 0.99 < shares.max() <= 1
        assert is_likely(int((shares < 0.5).sum()), count, 0.5)
        assert is_likely(int((abs(shares - 0.5) < 0.25).sum()), count, 0.5)


def test_jitters_operations_are_torchvisions() -> None:
    image = pillow(smooth((20, 30)))
    for kind, theirs in [
        ("brightness", TF.adjust_brightness),
        ("contrast", TF.adjust_contrast),
        ("color", TF.adjust_saturation),
    ]:
        assert apply_pillow(image, [Operation(kind, (1.3,))]).tobytes() == theirs(image, 1.3).tobytes()


# Randomness


def test_a_generator_in_the_same_state_gives_the_same_draw() -> None:
    augment, source = Augment(AugmentConfig(vflip=0.5, color_jitter=0.3, policy="3a"), (32, 48)), generator(3)
    augment.draw(60, 80, source)
    state = source.get_state()
    first, second = (augment.draw(60, 80, source) for _ in range(2))
    source.set_state(state)
    assert augment.draw(60, 80, source) == first
    assert augment.draw(60, 80, source) == second
    assert first != second
    random.random()
    np.random.rand()
    assert Augment(augment.config, augment.size).draw(60, 80, generator(3)) == augment.draw(60, 80, generator(3))


def global_states() -> tuple:
    name, keys, *rest = np.random.get_state()
    return random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state().tolist()


def test_global_random_states_are_untouched_even_where_nothing_can_be_drawn() -> None:
    augment = Augment(AugmentConfig(color_jitter=0.3, policy="rand-m9-n3-p1"), (32, 48))
    before = global_states()
    augment.draw(60, 80, generator(0))
    assert global_states() == before
    with pytest.raises(UserError, match=r"^an image needs a height and width of at least 1; got 0 x 80$"):
        augment.draw(0, 80, generator(0))
    assert global_states() == before


# What is refused

ERRORS: list[tuple[dict, str]] = [
    ({"scale": (0.0, 1.0)}, "scale must be two finite numbers above 0, the smaller first; got scale=(0.0, 1.0)"),
    ({"scale": (1.0, 0.5)}, "scale must be two finite numbers above 0, the smaller first; got scale=(1.0, 0.5)"),
    ({"ratio": (1.5, 0.5)}, "ratio must be two finite numbers above 0, the smaller first; got ratio=(1.5, 0.5)"),
    ({"hflip": 1.5}, "hflip must be between 0 and 1; got hflip=1.5"),
    ({"vflip": -0.1}, "vflip must be between 0 and 1; got vflip=-0.1"),
    ({"color_jitter": -0.4}, "color_jitter must be a finite number of at least 0; got color_jitter=-0.4"),
    ({"scale": (0.08, inf)}, "scale must be two finite numbers above 0, the smaller first; got scale=(0.08, inf)"),
    ({"ratio": (0.75, inf)}, "ratio must be two finite numbers above 0, the smaller first; got ratio=(0.75, inf)"),
    ({"ratio": (nan, 1.5)}, "ratio must be two finite numbers above 0, the smaller first; got ratio=(nan, 1.5)"),
    ({"color_jitter": inf}, "color_jitter must be a finite number of at least 0; got color_jitter=inf"),
    ({"mean": (nan, 0.0, 0.0)}, "mean must be three finite numbers; got mean=(nan, 0.0, 0.0)"),
    ({"mean": (0.0, 0.0, -inf)}, "mean must be three finite numbers; got mean=(0.0, 0.0, -inf)"),
]


@pytest.mark.parametrize(("fields", "sentence"), ERRORS)
def test_a_field_out_of_range_is_refused_in_one_sentence(fields: dict, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        AugmentConfig(**fields)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    "policy",
    [
        *("rand-m9-mst0.5", "rand9-m9", "rand-m9.5", "", "V0", "v0-m9", "augmix-m3", "random"),
        # timm itself would pass over these.
        *("rand-m9-inc", "rand-mx", "rand-m9-tweight", "rand-m9--inc1", "v0-mstd", "original-x"),
    ],
)
def test_a_mistyped_policy_is_refused_in_one_sentence(policy: str) -> None:
    with pytest.raises(UserError) as error:
        Augment(AugmentConfig(policy=policy), (32, 48))
    sentence = "policy must be one of timm's strings, such as rand-m9-mstd0.5-inc1, v0 or 3a; got "
    assert str(error.value) == f"{sentence}'{policy}'"


# Images


def without_colours(config: AugmentConfig, of: tuple[int, int], count: int) -> list[Draw]:
    return [replace(draw, operations=()) for draw in draws(config, count, of, (64, 96))]


def share_within_two_levels(drawn: list[Draw], images: Tensor) -> float:
    """Of the values that a batch and Pillow give for the same draws."""
    batch = apply_batch(drawn, images)
    one_by_one = torch.stack([tensor(apply(draw, pillow(image))) for draw, image in zip(drawn, images, strict=True)])
    assert batch.shape == one_by_one.shape
    return float(((batch.int() - one_by_one.int()).abs() <= 2).double().mean())


AGREEING = {
    # For a turned view torch's cubic kernel is not Pillow's.
    "bilinear": AugmentConfig(interpolation="bilinear", policy="rand-m9-n3-p0.7"),
    "bicubic": AugmentConfig(interpolation="bicubic", vflip=0.5, policy=None),
}
each_kernel = pytest.mark.parametrize("interpolation", AGREEING)


@each_size
@each_kernel
def test_a_batch_shows_what_pillow_shows(interpolation: str, size: tuple[int, int]) -> None:
    drawn = without_colours(AGREEING[interpolation], size, 24)
    images = torch.stack([smooth(size, phase) for phase in range(24)])
    assert share_within_two_levels(drawn, images) >= 0.99
    assert share_within_two_levels(drawn, images.flip(3)) >= 0.99
    # The draws of other images would not do.
    seen = apply_batch(drawn, images).int() - apply_batch(drawn[1:] + drawn[:1], images).int()
    assert (seen.abs() <= 2).double().mean() < 0.6


@each_kernel
def test_a_batch_shows_what_pillow_shows_of_photos(interpolation: str) -> None:
    archive = DATA / "photos" / "photos.tar.gz"
    if not archive.exists():
        pytest.skip(f"photos are read from {archive}, which is absent; ALLTOKENS_DATA names the folder")
    with tarfile.open(archive) as photos:
        names = [name for name in photos.getnames() if name.endswith((".jpg", ".JPEG"))]
        files = [photos.extractfile(name) for name in Random(0).sample(names, 6)]
        opened = [Image.open(file).convert("RGB") for file in files if file is not None]
    assert len(opened) == 6
    shares = []
    for index, image in enumerate(opened):
        augment = Augment(AGREEING[interpolation], (64, 96))
        drawn = [
            replace(augment.draw(image.height, image.width, generator(10 * index + k)), operations=()) for k in range(3)
        ]
        shares.append(share_within_two_levels(drawn, tensor(image).expand(3, -1, -1, -1)))
    assert np.mean(shares) >= 0.99


def test_either_path_has_the_same_targets() -> None:
    size, drawn = (60, 80), draws(AugmentConfig(policy="rand-m9-n3-p1"), 12, size=(64, 96))
    maps = [ScoreMap.from_dense(4 * torch.randn(20, 12, 16, generator=generator(seed))) for seed in range(12)]
    views = [draw.view for draw in drawn]
    batched = token_targets(maps, torch.stack([view.normalized() for view in views]), (4, 6), 20)
    for index, (score_map, view) in enumerate(zip(maps, views, strict=True)):
        assert view.source == size
        alone = token_targets([score_map], [view], (4, 6), 20)
        assert torch.equal(batched.dense()[index], alone.dense()[0])


@pytest.mark.parametrize("size", [(64, 96), (96, 64), (48, 48)])
def test_the_result_has_the_size_asked_for(size: tuple[int, int]) -> None:
    drawn = draws(AugmentConfig(policy="rand-m9-n3-p1", color_jitter=0.4), 8, size=size)
    images = smooth((60, 80)).expand(8, -1, -1, -1)
    assert apply_batch(drawn, images).shape == (8, 3, *size)
    assert {apply(draw, pillow(images[0])).size for draw in drawn} == {size[::-1]}


def test_colours_change_after_the_geometry_what_fills_the_canvas_too() -> None:
    beside = View.of(60, 80).translate(200, 0)
    operations = (Operation("invert"), Operation("solarize", (200,)))
    draw = Draw(beside, "bilinear", operations, (10, 60, 200), (0.0, 0.0, 1.0, 1.0))
    # 245, 195 and 55; then what is at least 200 is inverted again.
    expected = torch.tensor([10, 195, 55], dtype=torch.uint8)[:, None, None].expand(3, 60, 80)
    assert torch.equal(tensor(apply(draw, pillow(smooth((60, 80))))), expected)
    assert torch.equal(apply_batch([draw], smooth((60, 80))[None])[0], expected)


def test_an_image_in_a_batch_is_as_it_is_alone() -> None:
    drawn = [
        replace(draw, fill=(index, 40, 200 - index))
        for index, draw in enumerate(draws(AugmentConfig(policy="rand-m9-n3-p0.7-inc1"), 20))
    ]
    images = torch.stack([smooth((60, 80), phase) for phase in range(20)])
    batch = apply_batch([replace(draw, operations=()) for draw in drawn], images)
    for draw, image, seen in zip(drawn, images, batch, strict=True):
        alone = apply_batch([replace(draw, operations=())], image[None])[0]
        assert (seen.int() - alone.int()).abs().max() <= 1


def test_what_fills_the_canvas_is_the_mean_as_a_colour() -> None:
    assert AugmentConfig().fill == (124, 116, 104)
    assert AugmentConfig(mean=(0.0, 0.5, 1.0)).fill == (0, 128, 255)
    assert {draw.fill for draw in draws(AugmentConfig(mean=(0.5, 0.5, 0.5)), 3)} == {(128, 128, 128)}


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (3, 1)])
def test_an_image_of_a_pixel_or_two_is_shown(size: tuple[int, int]) -> None:
    augment, source = Augment(AugmentConfig(), (8, 8)), torch.Generator().manual_seed(0)
    image = Image.new("RGB", size[::-1], (10, 200, 30))
    for _ in range(50):
        assert apply(augment.draw(*size, source), image).size == (8, 8)
