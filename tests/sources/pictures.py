"""Small pictures as files."""

from io import BytesIO

import numpy as np
from PIL import Image


def noise(height: int = 5, width: int = 7, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def encoded(image: Image.Image | np.ndarray, format: str = "PNG", **options) -> bytes:
    file = BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, format, **options)
    return file.getvalue()


def picture(color: int) -> bytes:
    """A PNG of 1 x 1 that can be told from others by its red."""
    return encoded(np.full((1, 1, 3), color, dtype=np.uint8))


def red(image: Image.Image) -> int:
    assert image.mode == "RGB"
    return image.getpixel((0, 0))[0]
