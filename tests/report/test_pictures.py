"""Images as text."""

from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from alltokens.report.pictures import LARGEST, SMALLEST, data_uri, picture_of, shown


def opened(uri: str) -> Image.Image:
    kind, _, data = uri.partition(",")
    assert kind == "data:image/jpeg;base64"
    return Image.open(BytesIO(b64decode(data)))


def test_a_picture_is_the_image():
    pixels = torch.zeros(3, 200, 160, dtype=torch.uint8)
    pixels[0, :, 80:], pixels[2, :, :80] = 250, 250
    picture = np.asarray(opened(data_uri(picture_of(pixels)))).astype(int)
    assert picture.shape == (200, 160, 3)
    np.testing.assert_allclose(picture[:, 100], np.broadcast_to((250, 0, 0), (200, 3)), atol=4)
    np.testing.assert_allclose(picture[:, 60], np.broadcast_to((0, 0, 250), (200, 3)), atol=4)


@pytest.mark.parametrize("size", [(1000, 400), (400, 1000), (3000, 2), (257, 257)])
def test_a_large_image_is_made_smaller(size):
    picture = shown(Image.new("RGB", size))
    assert max(picture.size) == LARGEST
    assert min(picture.size) == max(1, round(min(size) * LARGEST / max(size)))


@pytest.mark.parametrize("size", [(32, 32), (28, 20), (1, 1)])
def test_a_small_image_has_every_pixel_as_a_square(size):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8))
    picture = shown(image)
    times = picture.width // image.width
    assert SMALLEST <= max(picture.size) <= 2 * SMALLEST
    assert np.array_equal(np.asarray(picture), np.asarray(image).repeat(times, 0).repeat(times, 1))


def test_nothing_but_pixels_is_kept_of_a_photo():
    photo = Image.new("RGB", (16, 16))
    photo.info["comment"] = b"taken at home"
    assert b"taken at home" not in b64decode(data_uri(photo).partition(",")[2])
