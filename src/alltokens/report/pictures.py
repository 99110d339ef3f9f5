"""Images as text that a page holds in itself."""

from base64 import b64encode
from io import BytesIO

from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from alltokens.shapes import UInt8

LARGEST, SMALLEST = 256, 128
"""Of the longer side of an image on a page, in pixels."""
QUALITY = 82
"""Of a JPEG: about 10 kB for an image of the largest size."""


def picture_of(pixels: UInt8[Tensor, "3 h w"]) -> Image.Image:
    """An image as a page shows it."""
    return shown(to_pil_image(pixels))


def shown(image: Image.Image) -> Image.Image:
    """Made smaller where it is large; a small one keeps its pixels to be seen one by one."""
    longest = max(image.size)
    if longest > LARGEST:
        size = [max(1, round(side * LARGEST / longest)) for side in image.size]
        return image.resize((size[0], size[1]), Image.Resampling.LANCZOS)
    times = -(-SMALLEST // longest)
    return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST) if times > 1 else image


def data_uri(image: Image.Image) -> str:
    """A JPEG without anything but its pixels."""
    buffer = BytesIO()
    bare = image.convert("RGB")
    # What Pillow knows of a photo would be written along: a place and a time are not for everyone.
    bare.info.clear()
    bare.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{b64encode(buffer.getvalue()).decode()}"
