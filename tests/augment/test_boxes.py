"""Boxes cut from images of any size, resampled in batches, against Pillow on the whole images."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode

from alltokens.augment import boxes as boxes_module
from alltokens.augment.boxes import Boxes, cut, is_fused
from alltokens.augment.photometric import Operation
from alltokens.augment.pipeline import Augment, AugmentConfig, Draw, apply
from alltokens.geometry.view import View
from alltokens.sources.decode import tensor_of

from ..kernels import run_with_kernels
from ..sources.pictures import noise

SIZES = [(60, 80), (80, 60), (64, 64), (30, 120), (201, 143)]
# For a turned view torch's cubic kernel is not Pillow's.
AGREEING = {
    "bilinear": AugmentConfig(interpolation="bilinear", policy="rand-m9-n3-p0.7"),
    "bicubic": AugmentConfig(interpolation="bicubic", vflip=0.5, policy=None),
}
each_kernel = pytest.mark.parametrize("interpolation", AGREEING)


def photo(size: tuple[int, int], seed: int) -> Image.Image:
    """Blurred noise."""
    coarse = Image.fromarray(noise(size[0] // 10, size[1] // 10, seed=seed))
    return coarse.resize(size[::-1], Image.Resampling.BICUBIC)


def drawn(config: AugmentConfig, count: int, size: tuple[int, int] = (48, 64)) -> tuple[list[Draw], list[Image.Image]]:
    augment, source = Augment(config, size), torch.Generator().manual_seed(0)
    images = [photo(SIZES[seed % len(SIZES)], seed) for seed in range(count)]
    return [augment.draw(image.height, image.width, source) for image in images], images


def boxes_of(draws: Sequence[Draw], images: Sequence[Image.Image]) -> Boxes:
    parts = [cut(draw, tensor_of(image)) for draw, image in zip(draws, images, strict=True)]
    pixels = [box.permute(1, 2, 0).reshape(-1, 3) for _, box in parts]
    return Boxes(torch.cat(pixels), tuple(draw for draw, _ in parts))


@each_kernel
def test_boxes_of_different_sizes_become_what_pillow_shows_of_the_images(interpolation: str) -> None:
    draws, images = drawn(AGREEING[interpolation], 40)
    draws = [replace(draw, operations=()) for draw in draws]
    seen = boxes_of(draws, images).augmented()
    expected = torch.stack([tensor_of(apply(draw, image)) for draw, image in zip(draws, images, strict=True)])
    assert seen.shape == expected.shape
    assert ((seen.int() - expected.int()).abs() <= 2).double().mean() >= 0.99


def test_colours_change_after_the_geometry() -> None:
    config = AugmentConfig(interpolation="bilinear", policy="rand-m9-n2-p1-inc1", color_jitter=0.3)
    draws, images = drawn(config, 40)
    # A level more or less may become far more: equalize, posterize and the like are steep.
    draws = [
        replace(draw, operations=tuple(x for x in draw.operations if x.kind in ("brightness", "color", "invert")))
        for draw in draws
    ]
    assert sum(bool(draw.operations) for draw in draws) > 20
    seen = boxes_of(draws, images).augmented()
    expected = torch.stack([tensor_of(apply(draw, image)) for draw, image in zip(draws, images, strict=True)])
    assert ((seen.int() - expected.int()).abs() <= 4).double().mean() >= 0.99


def test_boxes_are_resampled_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, images = drawn(AugmentConfig(policy="rand-m9-n2"), 11, (20, 30))
    boxes = boxes_of([replace(draw, operations=()) for draw in draws], images)
    at_once = boxes.augmented()
    monkeypatch.setattr(boxes_module, "AT_ONCE", 3)
    assert (at_once.int() - boxes.augmented().int()).abs().max() <= 1


def test_a_box_is_no_larger_than_what_is_seen_with_the_reach_of_the_kernel() -> None:
    view = View.of(60, 80).crop(20, 30, 10, 8).resize(20, 16)
    for interpolation, reach in (("bilinear", 1), ("bicubic", 2)):
        draw, box = cut(Draw(view, interpolation, (), (0, 0, 0), (0.0, 0.0, 1.0, 1.0)), tensor_of(photo((60, 80), 0)))
        assert box.shape[1:] == (10 + 2 * reach, 8 + 2 * reach) == draw.view.source


def test_a_draw_that_shows_nothing_of_the_image_is_all_fill() -> None:
    draws, images = drawn(AGREEING["bilinear"], 3)
    beside = replace(draws[1], view=draws[1].view.translate(1000, 0), operations=(), fill=(10, 60, 200))
    seen = boxes_of([draws[0], beside, draws[2]], images).augmented()[1]
    assert torch.equal(seen, torch.tensor([10, 60, 200], dtype=torch.uint8)[:, None, None].expand_as(seen))


@pytest.mark.parametrize("policy", ["rand-m9-n4-p1-inc1", "rand-m9-n4-p1-t3aw", "3a"])
def test_nothing_is_asked_of_the_device_so_that_it_need_not_be_waited_for(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tensors without values cannot be asked for one; torch has no autocast for them.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    draws, images = drawn(AugmentConfig(policy=policy, color_jitter=0.3), 40)
    boxes = boxes_of(draws, images)
    assert replace(boxes, pixels=boxes.pixels.to("meta")).augmented().shape == (40, 3, 48, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_makes_the_same_of_them() -> None:
    draws, images = drawn(AugmentConfig(policy="rand-m9-n2-p1-inc1", color_jitter=0.3), 40)
    boxes = boxes_of(draws, images)
    there = replace(boxes, pixels=boxes.pixels.cuda()).augmented()
    assert there.is_cuda
    difference = (there.cpu().int() - boxes.augmented().int()).abs()
    # Rounded otherwise now and then, of which steep operations make much.
    assert (difference <= 2).double().mean() >= 0.99


def test_a_gpu_runs_the_kernels() -> None:
    with FakeTensorMode():
        assert is_fused(torch.empty(5, 3, dtype=torch.uint8, device="cuda").device)
    assert not is_fused(torch.empty(5, 3, dtype=torch.uint8).device)


@pytest.mark.slow
def test_the_triton_kernels_make_the_same_of_them() -> None:
    run_with_kernels("tests.augment.test_boxes")


def check_kernels() -> None:
    """Views and interpolations as they are drawn, and one change of colour: those drawn may make much of a level."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    draws, images = drawn(AugmentConfig(policy="rand-m9-n3-p1-inc1"), 12, (12, 16))
    assert {draw.view.is_axis_aligned for draw in draws} == {True, False}
    boxes = boxes_of([replace(draw, operations=(Operation("invert"),)) for draw in draws], images)
    there = replace(boxes, pixels=boxes.pixels.to(device)).all_at_once()
    assert there.is_contiguous(memory_format=torch.channels_last)
    difference = (there.cpu().int() - boxes.some_at_once().int()).abs()
    assert difference.max() <= 1
    assert (difference == 0).double().mean() > 0.99


if __name__ == "__main__":
    check_kernels()
