"""Changes of colour on tensors against timm's functions on Pillow images of the same bytes."""

from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import NAME_TO_OP
from torch import Tensor

from alltokens.augment.geometric import GEOMETRIC
from alltokens.augment.photometric import BATCHED, PILLOW, Operation, apply_batch, apply_pillow

from ..kernels import run_with_kernels

TIMM = {function.__name__: function for function in NAME_TO_OP.values()}
FACTORS = [(0.0,), (0.1,), (0.55,), (1.0,), (1.37,), (1.9,), (3.0,)]
TABLES: dict[str, list[tuple]] = {
    "auto_contrast": [()],
    "equalize": [()],
    "invert": [()],
    "posterize": [(bits,) for bits in range(1, 9)],
    "solarize": [(0,), (1,), (77,), (128,), (255,), (256,)],
    "solarize_add": [(0,), (1,), (33,), (110,), (128,)],
}
"""Operations that look each value up in a table, with arguments to try."""
ARITHMETIC: dict[str, list[tuple]] = {
    "color": FACTORS,
    "contrast": FACTORS,
    "brightness": FACTORS,
    "sharpness": FACTORS,
    "desaturate": [(0.0,), (0.25,), (0.5,), (0.93,), (1.0,)],
    "gaussian_blur": [(0.1,), (0.3,), (0.77,), (1.0,), (1.7,), (2.0,), (4.0,)],
}
"""Operations that compute, and so round."""


def noise(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height + width)
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=generator)


def ramp() -> Tensor:
    """Dull and smooth: values between 60 and 200, different in each channel."""
    y, x = torch.meshgrid(torch.linspace(0, 1, 31), torch.linspace(0, 1, 45), indexing="ij")
    return torch.stack((60 + 140 * x, 80 + 50 * y, 100 + 60 * x * y)).byte()


def flat(red: int, green: int, blue: int) -> Tensor:
    return torch.tensor([red, green, blue], dtype=torch.uint8)[:, None, None].repeat(1, 9, 14)


def two_values() -> Tensor:
    """Channels of one value, of two neighbouring ones and of the two extremes."""
    checks = torch.arange(9)[:, None].add(torch.arange(14)).remainder(2)
    return torch.stack((torch.full_like(checks, 200), 99 + checks, 255 * checks)).byte()


IMAGES = {
    "noise": noise(37, 53),
    "large noise": noise(150, 120),
    "ramp": ramp(),
    "black": flat(0, 0, 0),
    "white": flat(255, 255, 255),
    "one value a channel": flat(200, 13, 128),
    "two values": two_values(),
    "three rows": noise(3, 20),
    "very small": noise(3, 3),
}
each_image = pytest.mark.parametrize("name", IMAGES)


def pillow(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def cases(operations: dict[str, list[tuple]]) -> list:
    return [pytest.param(kind, numbers, id=f"{kind}{numbers}") for kind in operations for numbers in operations[kind]]


def farthest(ours: Tensor, theirs: Tensor) -> int:
    """The most levels by which any value differs."""
    return int((ours.int() - theirs.int()).abs().max())


@each_image
@pytest.mark.parametrize(("kind", "arguments"), cases(TABLES))
def test_an_operation_by_a_table_is_timms_to_the_last_bit(kind: str, arguments: tuple, name: str) -> None:
    image, operations = IMAGES[name], [Operation(kind, arguments)]
    theirs = tensor(TIMM[kind](pillow(image), *arguments))
    assert torch.equal(apply_batch(image[None], [operations])[0], theirs)
    assert torch.equal(tensor(apply_pillow(pillow(image), operations)), theirs)


@each_image
@pytest.mark.parametrize(("kind", "arguments"), cases(ARITHMETIC))
def test_an_operation_that_computes_is_within_a_level_of_timms(kind: str, arguments: tuple, name: str) -> None:
    image, operations = IMAGES[name], [Operation(kind, arguments)]
    theirs = tensor(TIMM[kind](pillow(image), *arguments))
    ours = apply_batch(image[None], [operations])[0]
    assert farthest(ours, theirs) <= 1
    assert (ours == theirs).double().mean() > 0.97
    assert torch.equal(tensor(apply_pillow(pillow(image), operations)), theirs)


def test_every_range_of_values_is_stretched_as_pillow_does() -> None:
    draw = Random(0)
    ends = [sorted(draw.sample(range(256), 2)) for _ in range(900)]
    rows = torch.stack([torch.linspace(low, high, 160).byte() for low, high in ends]).reshape(300, 3, 4, 40)
    theirs = torch.stack([tensor(TIMM["auto_contrast"](pillow(image))) for image in rows])
    assert torch.equal(apply_batch(rows, [[Operation("auto_contrast")]] * 300), theirs)


@pytest.mark.parametrize("kind", ARITHMETIC)
def test_any_argument_between_is_within_a_level_too(kind: str) -> None:
    draw = Random(0)
    operations = [Operation(kind, (draw.uniform(0.1, 2.0),)) for _ in range(60)]
    ours = apply_batch(IMAGES["noise"].expand(60, -1, -1, -1), [[operation] for operation in operations])
    theirs = torch.stack([tensor(TIMM[kind](pillow(IMAGES["noise"]), *drawn.arguments)) for drawn in operations])
    assert farthest(ours, theirs) <= 1
    assert (ours == theirs).double().mean() > 0.999


@pytest.mark.parametrize("kind", [*TABLES, *ARITHMETIC])
def test_every_operation_changes_an_image(kind: str) -> None:
    image, arguments = IMAGES["noise"] // 2 + 30, (TABLES | ARITHMETIC)[kind]
    ours = apply_batch(image[None], [[Operation(kind, arguments[len(arguments) // 3])]])[0]
    assert (ours == image).double().mean() < 0.9


def test_every_operation_of_timms_is_here_or_moves_pixels() -> None:
    # What draws its own radius is recorded with the radius that it drew.
    assert set(TIMM) - {"gaussian_blur_rand"} == set(BATCHED) | set(GEOMETRIC)
    assert set(PILLOW) == set(TIMM)
    assert set(TABLES | ARITHMETIC) == set(BATCHED)


@each_image
def test_keeping_no_bit_gives_black(name: str) -> None:
    image, operations = IMAGES[name], [Operation("posterize", (0,))]
    assert not apply_batch(image[None], [operations]).any()
    assert not tensor(apply_pillow(pillow(image), operations)).any()


def random_operations(draw: Random, length: int) -> list[Operation]:
    everything = TABLES | ARITHMETIC
    kinds = [draw.choice(list(everything)) for _ in range(length)]
    return [Operation(kind, draw.choice(everything[kind])) for kind in kinds]


def test_images_of_a_batch_have_their_own_operations_in_their_own_order() -> None:
    draw = Random(0)
    images = torch.stack([noise(24, 31).roll(index, 2) for index in range(48)])
    operations = [random_operations(draw, index % 4) for index in range(48)]
    ours = apply_batch(images, operations)
    for image, drawn, seen in zip(images, operations, ours, strict=True):
        expected = image[None]
        for operation in drawn:
            expected = apply_batch(expected, [[operation]])
        assert torch.equal(seen, expected[0])


def test_a_batch_in_different_orders_is_what_pillow_makes_one_by_one() -> None:
    draw = Random(1)
    # After a rounding that differs by a level, a table may tear levels apart: tables come first here, in any order.
    orders = []
    for index in range(40):
        tables = [Operation(kind, draw.choice(TABLES[kind])) for kind in draw.sample(list(TABLES), index % 3)]
        last = draw.choice(list(ARITHMETIC))
        orders.append([*tables, Operation(last, draw.choice(ARITHMETIC[last]))])
    images = torch.stack([noise(24, 31).roll(index, 2) for index in range(40)])
    ours = apply_batch(images, orders)
    theirs = torch.stack([tensor(apply_pillow(pillow(x), drawn)) for x, drawn in zip(images, orders, strict=True)])
    assert farthest(ours, theirs) <= 1
    reordered = torch.stack(
        [tensor(apply_pillow(pillow(x), drawn[::-1])) for x, drawn in zip(images, orders, strict=True)]
    )
    assert farthest(ours, reordered) > 50


def test_a_batch_without_operations_is_unchanged_and_not_the_same_memory() -> None:
    images = noise(6, 7)[None]
    ours = apply_batch(images, [[]])
    assert torch.equal(ours, images)
    assert ours.data_ptr() != images.data_ptr()


def test_a_batch_that_is_changed_leaves_its_input_alone() -> None:
    images = noise(6, 7)[None]
    before = images.clone()
    apply_batch(images, [[Operation("invert")]])
    assert torch.equal(images, before)


@pytest.mark.slow
def test_the_triton_kernels_make_the_same() -> None:
    run_with_kernels("tests.augment.test_photometric")


def check_kernels() -> None:
    """Every change alone, then several in any order, equal to the last bit."""
    from alltokens.augment.photometric_kernel import apply_batch as recolour

    device = "cuda" if torch.cuda.is_available() else "cpu"
    everything = [[Operation(kind, numbers)] for kind, some in (TABLES | ARITHMETIC).items() for numbers in some]
    draw = Random(0)
    several = [random_operations(draw, index % 4) for index in range(48)]
    for name, image in IMAGES.items():
        for operations in (everything, several, [[]]):
            images = image.expand(len(operations), -1, -1, -1)
            ours, expected = recolour(images.to(device), operations), apply_batch(images, operations)
            assert ours.is_contiguous(memory_format=torch.channels_last)
            for drawn, one, other in zip(operations, ours.cpu(), expected, strict=True):
                assert torch.equal(one, other), f"{name}: {drawn}"


if __name__ == "__main__":
    check_kernels()
