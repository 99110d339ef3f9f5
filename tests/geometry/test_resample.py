"""Pixels through views against Pillow, torchvision, and images whose every point is known."""

from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as TF

from alltokens.errors import UserError
from alltokens.geometry.resample import apply_batch, needed
from alltokens.geometry.view import View

SIZES = [(48, 48), (48, 64), (64, 48), (32, 96)]
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
BILINEAR = InterpolationMode.BILINEAR

each_size = pytest.mark.parametrize("size", SIZES)
each_kernel = pytest.mark.parametrize("interpolation", FILTERS)


def noise(size, channels=3, seed=0):
    """Random bytes, [channels, height, width]."""
    return torch.randint(256, (channels, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def wave(x, y, size):
    """A smooth picture of the plane that is different in x, y and channel, between 0.1 and 0.9, [3, ...]."""
    x, y = x / size[1], y / size[0]
    red = 0.5 + 0.3 * np.sin(5 * x + 2 * y) + 0.1 * np.cos(7 * y)
    green = 0.5 + 0.4 * np.cos(6 * y - 3 * x)
    blue = 0.2 + 0.6 * x * (1 - y)
    return np.stack((red, green, blue))


def smooth(size):
    """The wave on a pixel grid, float64 [3, height, width]."""
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    return torch.from_numpy(wave(x, y, size))


def to_bytes(image):
    return (image * 255).round().byte()


def pillow(pixels):
    """A Pillow image of uint8 [channels, height, width]."""
    array = pixels.permute(1, 2, 0).numpy()
    return Image.fromarray(array[:, :, 0] if len(pixels) == 1 else array)


def tensor(image):
    """uint8 [channels, height, width] of a Pillow image."""
    return torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1)


def by_pillow(view, pixels, *arguments):
    return tensor(view.apply(pillow(pixels), *arguments))


def by_tensor(view, pixels, *arguments):
    return view.apply(pixels, *arguments)


def by_batch(view, pixels, *arguments):
    """Beside another view, so that the batch is a mixed one."""
    other = View.of(*view.source).rotate(9).crop(0, 0, *view.size)
    return apply_batch(torch.stack((pixels.flip(-1), pixels)), [other, view], *arguments)[1]


PATHS = {"pillow": by_pillow, "tensor": by_tensor, "batch": by_batch}
each_path = pytest.mark.parametrize("path", PATHS)


def random_chain(size, draw):
    """Six operations, as an augmentation would draw them, in any order."""
    height, width = size
    top, left = draw.randint(0, height // 3), draw.randint(0, width // 3)
    operations = [
        lambda view: view.rotate(draw.uniform(-30, 30)),
        lambda view: view.shear(draw.uniform(-15, 15), draw.uniform(-15, 15)),
        lambda view: view.translate(draw.uniform(-5, 5), draw.uniform(-5, 5)),
        View.hflip,
        lambda view: view.resize(draw.randint(20, 40), draw.randint(20, 40)),
    ]
    draw.shuffle(operations)
    view = View.of(height, width).crop(top, left, height - 2 * top + 3, width - 2 * left + 3)
    for operation in operations:
        view = operation(view)
    return view


def points(view):
    """Where the centre of each canvas pixel lies in the image, x and y."""
    y, x = np.mgrid[: view.size[0], : view.size[1]] + 0.5
    (a, b, e), (c, d, f) = view.matrix
    return a * x + b * y + e, c * x + d * y + f


# Flips and crops


@each_size
@each_kernel
@each_path
@pytest.mark.parametrize("channels", [1, 3])
def test_flips_and_crops_are_exact(path, interpolation, size, channels):
    pixels, view = noise(size, channels), View.of(*size)
    crop = (5, 9, 20, 17)
    outside = (-4, size[1] - 10, 30, 16)
    both = TF.vertical_flip(TF.horizontal_flip(TF.crop(pixels, *crop)))
    for ours, theirs in [
        (view, pixels),
        (view.hflip(), TF.horizontal_flip(pixels)),
        (view.vflip(), TF.vertical_flip(pixels)),
        (view.crop(*crop), TF.crop(pixels, *crop)),
        (view.crop(*outside), TF.crop(pixels, *outside)),
        (view.hflip().crop(*outside), TF.crop(TF.horizontal_flip(pixels), *outside)),
        (view.crop(*crop).rotate(180), both),
        (view.resize(13, 77).rotate(20).rotate(-20).resize(*size).crop(*crop).hflip().vflip(), both),
    ]:
        assert torch.equal(PATHS[path](ours, pixels, interpolation), theirs)


@each_path
def test_a_right_angle_on_a_square_is_exact(path):
    pixels = noise((48, 48))
    assert torch.equal(PATHS[path](View.of(48, 48).rotate(90), pixels), TF.rotate(pixels, 90))


# Resizes

TARGETS = [(24, 24), (20, 70), (96, 33), (7, 150)]


@each_size
@each_kernel
@each_path
@pytest.mark.parametrize("target", TARGETS)
def test_a_resize_of_bytes_is_pillows_and_torchvisions(path, interpolation, size, target):
    pixels = (to_bytes(smooth(size)).int() + noise(size).int() // 8 - 16).clamp(0, 255).byte()
    seen = PATHS[path](View.of(*size).resize(*target), pixels, interpolation).int()
    by_pil = tensor(pillow(pixels).resize(target[::-1], FILTERS[interpolation])).int()
    by_torchvision = TF.resize(pixels, list(target), InterpolationMode(interpolation), antialias=True).int()
    for theirs in (by_pil, by_torchvision):
        assert ((seen - theirs).abs() <= 1).double().mean() >= 0.999


@each_size
@each_kernel
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_resize_of_floats_is_the_antialiased_interpolation(interpolation, size, target, dtype):
    image = noise(size).to(dtype) / 255
    seen = View.of(*size).resize(*target).apply(image, interpolation)
    theirs = F.interpolate(image[None], target, mode=interpolation, antialias=True)[0]
    assert seen.dtype == dtype
    torch.testing.assert_close(seen, theirs, rtol=0, atol=2e-5 if dtype == torch.float32 else 1e-9)


@each_kernel
def test_a_crop_and_resize_of_a_pillow_image_is_one_resize_of_a_box(interpolation):
    image = pillow(noise((64, 96)))
    seen = View.of(64, 96).crop(7, 11, 41, 53).resize(20, 30).hflip().apply(image, interpolation)
    theirs = image.resize((30, 20), FILTERS[interpolation], box=(11, 7, 64, 48))
    assert seen.tobytes() == theirs.transpose(Image.Transpose.FLIP_LEFT_RIGHT).tobytes()


@each_kernel
def test_a_resize_of_a_pillow_image_is_pillows_to_the_last_bit_at_every_size(interpolation):
    image = pillow(noise((25, 19)))
    for side in range(1, 80):
        seen = View.of(25, 19).resize(side, side).apply(image, interpolation)
        assert seen.tobytes() == image.resize((side, side), FILTERS[interpolation]).tobytes()


def brute_force(pixels, view, interpolation, fill):
    """The definition of an axis-aligned view, pixel by pixel: stretched kernel, normalised inside the image."""

    def kernel(x):
        x = abs(x)
        if interpolation == "bilinear":
            return max(0.0, 1 - x)
        return 1.5 * x**3 - 2.5 * x**2 + 1 if x < 1 else -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0

    def axis(scale, offset, count, length):
        rows = []
        for j in range(count):
            centre = scale * (j + 0.5) + offset
            weights = np.array([kernel((i + 0.5 - centre) / max(1, abs(scale))) for i in range(length)])
            rows.append(weights / weights.sum() if 0 <= centre < length else None)
        return rows

    columns = axis(view.matrix[0][0], view.matrix[0][2], view.size[1], view.source[1])
    rows = axis(view.matrix[1][1], view.matrix[1][2], view.size[0], view.source[0])
    canvas = np.full(view.size, float(fill))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            if row is not None and column is not None:
                canvas[i, j] = row @ pixels @ column
    return canvas


BOXES = {
    "inside": View.of(19, 25).resize(30, 40).crop(3, 4.5, 21, 30).resize(9, 12),
    "outside at the top left": View.of(19, 25).crop(-6.3, -2.2, 17, 20).resize(11, 8),
    "outside on all sides": View.of(19, 25).crop(-3, -4, 26, 33).resize(15, 40).vflip(),
    "mirrored": View.of(19, 25).hflip().translate(5, 2.5).resize(8, 14),
    "enlarged": View.of(19, 25).crop(4.25, -1.5, 6, 8).resize(21, 30),
}


@each_kernel
@pytest.mark.parametrize("box", BOXES)
def test_a_box_may_be_fractional_and_reach_outside(box, interpolation):
    view, pixels = BOXES[box], noise((19, 25), channels=1)
    expected = brute_force(pixels[0].double().numpy(), view, interpolation, fill=77)
    exact = view.apply(pixels.double(), interpolation, 77)[0].numpy()
    np.testing.assert_allclose(exact, expected, rtol=0, atol=1e-9)
    for path in (by_tensor, by_batch):
        seen = path(view, pixels, interpolation, 77)[0].double().numpy()
        np.testing.assert_allclose(seen, expected.clip(0, 255), rtol=0, atol=0.501)


@each_kernel
@pytest.mark.parametrize("box", BOXES)
def test_a_box_of_a_pillow_image_may_be_fractional_and_reach_outside(box, interpolation):
    view, pixels = BOXES[box], to_bytes(smooth((19, 25)))[:1]
    expected = brute_force(pixels[0].double().numpy(), view, interpolation, fill=77)
    error = np.abs(by_pillow(view, pixels, interpolation, 77)[0].double().numpy() - expected)
    assert (error <= 1).mean() > 0.9
    # In a canvas pixel that is partly outside, edge pixels are repeated rather than left out.
    assert error.max() <= 5


# Turned and sheared views


@each_size
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda view: view.rotate(23), lambda image: TF.rotate(image, 23, BILINEAR)),
        (lambda view: view.shear(12, -7), lambda image: TF.affine(image, 0, [0, 0], 1.0, [12, -7], BILINEAR)),
    ],
    ids=["rotate", "shear"],
)
def test_at_unit_scale_a_turned_image_is_torchvisions(ours, theirs, size):
    image = noise(size).double()
    # Torchvision fades out at the edges, so only pixels that take nothing from outside are compared.
    whole = theirs(torch.ones(1, *size, dtype=torch.float64))[0] > 1 - 1e-9
    seen, expected = ours(View.of(*size)).apply(image), theirs(image)
    torch.testing.assert_close(seen[:, whole], expected[:, whole], rtol=0, atol=1e-6)


@each_size
@each_kernel
@each_path
def test_a_chain_of_six_operations_shows_the_picture_at_the_mapped_points(path, interpolation, size):
    for seed in range(6):
        view = random_chain(size, Random(seed))
        x, y = points(view)
        expected = wave(x, y, size) * 255
        inside = (x >= 0) & (x < size[1]) & (y >= 0) & (y < size[0])
        seen = PATHS[path](view, to_bytes(smooth(size)), interpolation, 9).numpy()
        assert (seen[:, ~inside] == 9).all()
        # Half a pixel at the edge is extrapolated, and a resize blurs by a pixel.
        error = np.abs(seen - expected)[:, inside]
        assert error.mean() < 1.2
        assert np.quantile(error, 0.95) < 3


@each_size
def test_exchanging_x_and_y_is_noticed_in_the_pixels(size):
    view = random_chain(size, Random(1))
    y, x = points(view)
    inside = (x >= 0) & (x < size[1]) & (y >= 0) & (y < size[0])
    seen = view.apply(smooth(size)).numpy()
    assert np.abs(seen - wave(x, y, size))[:, inside].mean() * 255 > 10


@each_size
def test_one_resampling_shows_what_torchvision_shows_one_by_one(size):
    def chain(image):
        image = TF.resize(TF.crop(image, 4, 3, 40, 28), [56, 50], BILINEAR, antialias=True)
        image = TF.rotate(TF.horizontal_flip(image), 17, BILINEAR, fill=0)
        return TF.affine(image, 0, [4, -3], 1.0, [8, 5], BILINEAR, fill=0)

    size = (size[0] + 12, size[1] + 12)
    view = View.of(*size).crop(4, 3, 40, 28).resize(56, 50).hflip().rotate(17)
    view = view.shear(8, 5).translate(4, -3)
    whole = chain(torch.ones(1, *size, dtype=torch.float64))[0] > 1 - 1e-9
    assert whole.double().mean() > 0.4
    torch.testing.assert_close(view.apply(smooth(size))[:, whole], chain(smooth(size))[:, whole], rtol=0, atol=4 / 255)


@each_kernel
@each_size
def test_pillow_and_batch_agree(interpolation, size):
    pixels = to_bytes(smooth(size))
    chains = [random_chain(size, Random(seed)) for seed in range(8)]
    views = [View.of(*size).then(view).resize(28, 36) for view in chains] + [
        View.of(*size).crop(3, 5, 20, 24).resize(28, 36)
    ]
    batch = apply_batch(pixels.expand(len(views), -1, -1, -1), views, interpolation, 30)
    one_by_one = torch.stack([by_pillow(view, pixels, interpolation, 30) for view in views])
    assert ((batch.int() - one_by_one.int()).abs() <= 2).double().mean() >= 0.99


@each_kernel
def test_an_image_in_a_batch_is_as_it_is_alone(interpolation):
    images = torch.stack([noise((48, 64), seed=seed) for seed in range(4)]).float()
    views = [random_chain((48, 64), Random(seed)).resize(30, 20) for seed in range(3)]
    views.insert(1, View.of(48, 64).resize(30, 20))
    batch = apply_batch(images, views, interpolation)
    alone = torch.stack([view.apply(image, interpolation) for view, image in zip(views, images, strict=True)])
    torch.testing.assert_close(batch, alone, rtol=0, atol=0.02)


@each_path
@each_kernel
def test_a_part_of_a_turned_canvas_is_seen_as_in_the_whole(path, interpolation):
    pixels, view = noise((48, 64)), View.of(48, 64).rotate(25)
    whole, part = (PATHS[path](seen, pixels, interpolation).int() for seen in (view, view.crop(15, 20, 16, 18)))
    assert (part - whole[:, 15:31, 20:38]).abs().max() <= 1


@each_path
@pytest.mark.parametrize("target", [(24, 24), (96, 24)])
def test_a_turned_view_that_shrinks_does_not_alias(path, target):
    stripes = torch.zeros(1, 96, 96, dtype=torch.uint8)
    stripes[:, :, ::2] = 200
    height, width = target
    view = View.of(96, 96).resize(*target).rotate(20).crop(height * 3 // 8, width * 3 // 8, height // 4, width // 4)
    assert (PATHS[path](view, stripes).int() - 100).abs().max() <= 3


@each_path
def test_a_turned_view_that_shrinks_one_side_keeps_the_other_sharp(path):
    stripes = torch.zeros(1, 96, 96, dtype=torch.uint8)
    stripes[:, torch.arange(96) % 8 < 4] = 200
    view = View.of(96, 96).resize(96, 24).rotate(5).crop(24, 6, 48, 12)
    seen = PATHS[path](view, stripes)
    assert seen.min() <= 10
    assert seen.max() >= 190


def test_only_turned_views_go_through_the_second_step(monkeypatch):
    def refuse(*arguments, **named):
        raise AssertionError("an axis-aligned view was turned")

    monkeypatch.setattr(F, "grid_sample", refuse)
    view = View.of(48, 64).crop(-3, 5, 30, 30).resize(20, 11).hflip().vflip()
    view.apply(noise((48, 64)))
    with pytest.raises(AssertionError):
        view.rotate(1).apply(noise((48, 64)))


# Boxes and padding


@each_size
@each_kernel
@each_path
def test_no_pixel_outside_the_box_that_is_needed_changes_the_canvas(path, interpolation, size):
    turned = [random_chain(size, Random(seed)) for seed in range(6)]
    straight = [View.of(*size).crop(9.5, 4, 20, 15).resize(*target).hflip() for target in [(30, 40), (7, 5)]]
    for view in turned + straight:
        left, top, right, bottom = needed(view, interpolation)
        # Far from black and white, as Pillow clips between the axes, which it may take in another order.
        pixels, other = noise(size) // 2 + 64, noise(size, seed=1)
        other[:, top:bottom, left:right] = pixels[:, top:bottom, left:right]
        seen, expected = (PATHS[path](view, image, interpolation, 9) for image in (other, pixels))
        assert torch.equal(seen, expected)
        part = view.within(top, left, bottom - top, right - left)
        seen = PATHS[path](part, pixels[:, top:bottom, left:right], interpolation, 9)
        assert (seen.int() - expected.int()).abs().max() <= (2 if path == "pillow" else 1)


@each_kernel
def test_what_pads_an_image_is_not_seen(interpolation):
    sizes = [(48, 64), (40, 70), (33, 20), (1, 1)]
    views = [random_chain((48, 64), Random(3)).resize(30, 20), View.of(40, 70).crop(-5, 3, 60, 50).resize(30, 20)]
    views += [View.of(33, 20).rotate(30).resize(30, 20), View.of(1, 1).resize(30, 20)]
    padded, alone = [], []
    for seed, (view, (height, width)) in enumerate(zip(views, sizes, strict=True)):
        image = noise((52, 71), seed=seed)
        padded.append(image)
        alone.append(view.apply(image[:, :height, :width], interpolation, 7))
    seen = apply_batch(torch.stack(padded), views, interpolation, 7, padded=True)
    assert (seen.int() - torch.stack(alone).int()).abs().max() <= 1


# Fill and types


@each_path
@pytest.mark.parametrize("fill", [0, 200, (1, 20, 255)])
@pytest.mark.parametrize("turn", [0, 15])
def test_a_canvas_beside_the_image_is_all_fill(path, fill, turn):
    expected = torch.tensor(fill).expand(3)[:, None, None].expand(3, 10, 12)
    for top, left in [(-200, 0), (200, 0), (0, -200), (0, 200), (300, 300)]:
        view = View.of(48, 64).crop(top, left, 30, 30).resize(10, 12).rotate(turn)
        assert torch.equal(PATHS[path](view, noise((48, 64)), "bilinear", fill).long(), expected)


def test_half_precision_is_kept_and_computed_in_single():
    image = noise((48, 64)).half()
    view = View.of(48, 64).resize(20, 30).rotate(10)
    seen = view.apply(image)
    assert seen.dtype == torch.float16
    torch.testing.assert_close(seen.float(), view.apply(image.float()), rtol=1e-3, atol=0.1)


def test_autocast_costs_no_precision():
    view = View.of(48, 64).resize(20, 30).rotate(10)
    expected = view.apply(noise((48, 64)))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(view.apply(noise((48, 64))), expected)


VIEW = View.of(12, 16)
ERRORS = {
    "a view of an image of 12 x 16 pixels was given one of 16 x 12": lambda: VIEW.apply(noise((16, 12))),
    "a view of an image of 12 x 16 pixels was given one of 20 x 15": lambda: apply_batch(
        noise((20, 15))[None], [VIEW], padded=True
    ),
    "interpolation must be bilinear or bicubic; got 'nearest'": lambda: VIEW.apply(noise((12, 16)), "nearest"),
    "fill must be one number or one for each of 3 channels; got (1, 2)": lambda: VIEW.apply(
        pillow(noise((12, 16))), fill=(1, 2)
    ),
    "a Pillow image needs the mode RGB or L; got P, convert it first": lambda: VIEW.apply(Image.new("P", (16, 12))),
    "an image needs the shape [channels, height, width]; got [12, 16]": lambda: VIEW.apply(noise((12, 16))[0]),
    "images must be uint8 or floating; got torch.int64": lambda: VIEW.apply(noise((12, 16)).long()),
    "a batch needs the shape [images, channels, height, width] and a view for each image; "
    "got [1, 3, 12, 16] and 2 views": lambda: apply_batch(noise((12, 16))[None], [VIEW, VIEW]),
    "the views of a batch must share one canvas size; got 12 x 16 and 3 x 4": lambda: apply_batch(
        noise((12, 16)).expand(2, -1, -1, -1), [VIEW, VIEW.resize(3, 4)]
    ),
}


@pytest.mark.parametrize("sentence", ERRORS)
def test_what_cannot_be_applied_is_refused_in_one_sentence(sentence):
    with pytest.raises(UserError) as error:
        ERRORS[sentence]()
    assert str(error.value) == sentence
