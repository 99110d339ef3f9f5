"""Photos as data sets have them, for benchmarks of loading."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

from alltokens.sources.source import open_source


def jpegs(photos: str) -> Iterator[bytes]:
    """A folder's photos, 256 at most, as 500 x 375 JPEGs of quality 90."""
    source = open_source(photos)
    for row in range(min(len(source), 256)):
        file = io.BytesIO()
        source.image(row).resize((500, 375)).save(file, "JPEG", quality=90)
        yield file.getvalue()


def image_folder(photos: str, folder: Path, count: int, classes: int) -> Path:
    """The same as `count` files in class folders; they repeat, by links."""
    originals = []
    (folder / "originals").mkdir(parents=True)
    for number, data in enumerate(jpegs(photos)):
        originals.append(folder / "originals" / f"{number}.jpg")
        originals[-1].write_bytes(data)
    root = folder / "images"
    for number in range(count):
        place = root / f"{number % classes:04}" / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        os.link(originals[number % len(originals)], place)
    return root
