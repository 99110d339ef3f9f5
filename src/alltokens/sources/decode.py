"""Bytes, or an image in any of Pillow's modes, to an upright RGB image; what cannot be read says why."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from alltokens.shapes import UInt8

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

DECODER = "pillow"
"""Whose pixels they are; simplejpeg makes the same."""
EXIF = "applied"
"""What is done with the orientation tag."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""All that is read. Others of Pillow's start programs (EPS) or are rarely tested; JPEG includes MPO."""
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""File names with these, in either case, are images."""
LARGEST = 89_478_485
"""Pixels; where Pillow begins to warn of a small file made to fill the memory."""
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes each value of the orientation tag."""
METADATA, PIXELS = b"\xff\xe1", b"\xff\xda"
"""What segments of a JPEG begin with."""


class Unreadable(Exception):
    """Why an image cannot be read, one sentence; such an image is listed, it does not end the work."""


@dataclass(frozen=True)
class Opened:
    """An upright image whose pixels are decoded when they are asked for, or were where its size is not known before."""

    data: bytes | Image.Image
    """The bytes of a plain JPEG for simplejpeg, or what Pillow has opened."""
    size: tuple[int, int]
    """Height and width at scale 1."""
    scales: tuple[int, ...]
    """It can be decoded at one over these of its height and width."""

    def decoded(self, scale: int = 1) -> Image.Image:
        """RGB, to be asked for once; a pixel stands for `scale` rows and columns, the last ones maybe for fewer."""
        assert scale in self.scales, f"{scale} of {self.scales}"
        with reading():
            image = open_image(self.data) if isinstance(self.data, bytes) else self.data
            if scale > 1:
                image.draft("RGB", (image.width // scale, image.height // scale))
            return upright(image, owned=True)

    def pixels(self, scale: int = 1) -> UInt8[Tensor, "3 h w"]:
        """The same as a tensor; where simplejpeg is installed, a plain JPEG takes less time."""
        if isinstance(self.data, bytes) and scale == 1:
            with suppress(ValueError):  # whether what is damaged can be read is left to Pillow
                return torch.from_numpy(simplejpeg.decode_jpeg(self.data)).permute(2, 0, 1)
        return tensor_of(self.decoded(scale))


def tensor_of(image: Image.Image) -> UInt8[Tensor, "3 h w"]:
    """Pixels in the order that Pillow has them, channels last."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def decode(data: bytes | Image.Image) -> Image.Image:
    """The first frame, upright, as RGB without its transparency, which torchvision and timm leave out too."""
    return open_upright(data).decoded()


def open_upright(data: bytes | Image.Image) -> Opened:
    """A JPEG that is upright as it is waits to be decoded; of other formats the orientation may stand at the end."""
    with reading():
        if simplejpeg is not None and isinstance(data, bytes) and (size := size_of_plain_jpeg(data)):
            return Opened(data, size, scales_of(size))
        image = open_image(data) if isinstance(data, bytes) else data
        require_bearable(image.height, image.width)
        waits = image is not data and image.format == "JPEG" and orientation(image) not in UPRIGHT
        image = image if waits else upright(image, owned=image is not data)
        size = image.height, image.width
        return Opened(image, size, scales_of(size) if waits else (1,))


def size_of_plain_jpeg(data: bytes) -> tuple[int, int] | None:
    """Height and width of a colour JPEG without Exif and XMP, which might say that it is to be turned."""
    segment = 2
    while data[segment : segment + 1] == b"\xff" and data[segment : segment + 2] not in (METADATA, PIXELS):
        segment += 2 + int.from_bytes(data[segment + 2 : segment + 4], "big")
    if data[:2] != b"\xff\xd8" or data[segment : segment + 2] != PIXELS:
        return None
    with suppress(ValueError):
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        require_bearable(height, width)
        return (height, width) if colours == "YCbCr" else None
    return None


def scales_of(size: tuple[int, int]) -> tuple[int, ...]:
    """Those of a JPEG of this height and width."""
    return tuple(scale for scale in (1, 2, 4, 8) if scale <= min(size))


def require_bearable(height: int, width: int) -> None:
    """Refuse a decompression bomb, or an image that might be one."""
    if height * width > LARGEST:
        raise too_large()


def upright(image: Image.Image, owned: bool) -> Image.Image:
    """The image decoded, turned and in RGB: itself where nothing is to be changed and nobody else has it."""
    image.load()
    method = UPRIGHT.get(orientation(image))
    image = eight_bits(image)
    if image.mode != "RGB" or not owned:
        image = image.convert("RGB")
    # What is left would say that the image is still to be turned.
    image.info.clear()
    return image if method is None else image.transpose(method)


@contextmanager
def reading() -> Iterator[None]:
    """Whatever Pillow raises becomes Unreadable, and its warnings of odd files are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Unreadable:
            raise
        except UnidentifiedImageError as error:
            raise Unreadable(f"the image is damaged or not one of {', '.join(FORMATS)}") from error
        except Image.DecompressionBombError as error:
            raise too_large() from error
        except Exception as error:  # damaged bytes make Pillow raise anything, SyntaxError and MemoryError included
            raise Unreadable(f"the image cannot be decoded ({said_by(error)})") from error


def said_by(error: Exception) -> str:
    """The first line of a library's own words, to stand in a sentence."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")


def too_large() -> Unreadable:
    """The sentence for a decompression bomb, or an image that might be one."""
    return Unreadable(f"the image has more than {LARGEST:,} pixels")


def open_image(data: bytes) -> Image.Image:
    """The header is read, the pixels are not."""
    if not data:
        raise Unreadable("the image is empty")
    return Image.open(BytesIO(data), formats=FORMATS)


def orientation(image: Image.Image) -> int:
    """The tag's value; an image that is whole is not given up for a tag that cannot be read."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # as above: damaged tags raise anything
        return 1


def eight_bits(image: Image.Image) -> Image.Image:
    """Greyscale of 16 bits in 8, where Pillow itself would cut off all above 255."""
    if image.mode == "F":
        raise Unreadable("the image has floating-point pixels, whose range is not known")
    if image.mode != "I" and not image.mode.startswith("I;16"):
        return image
    # Pillow holds the 16 bits of some formats in 32.
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise Unreadable(f"the image has values from {values.min()} to {values.max()}, outside of 16 bits")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))
