"""A small annotator and small data sets for the tests of annotation."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from alltokens.annotate.annotator import Annotator
from alltokens.annotate.canvas import Canvas, Fit
from alltokens.annotate.class_map import ClassMap
from alltokens.annotate.write import Job, Machine
from alltokens.sources.source import open_source

CPU = Machine(torch.device("cpu"), batch=3, workers=0)
STRIDE = 8


class Patches(nn.Module):
    """A linear layer on each patch of 8 x 8 pixels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        weight = torch.randn(classes, 3, STRIDE, STRIDE, generator=torch.Generator().manual_seed(classes))
        self.weight = nn.Parameter(weight / STRIDE, requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.conv2d(images, self.weight, stride=STRIDE)


def toy_annotator(classes: int = 7, side: int = 32) -> Annotator:
    """Sees squares of 32 pixels, 4 x 4 cells."""
    return Annotator(
        name="toy",
        module=Patches(classes).eval(),
        classes=tuple(f"class {number}" for number in range(classes)),
        image_size=(side, side),
        stride=STRIDE,
        any_size=True,
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.3, 0.4),
        interpolation="bilinear",
        weights_sha256=f"{classes:064}",
    )


def photo(seed: int, height: int, width: int) -> Image.Image:
    """Smooth noise, no two alike."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def photo_folder(folder: Path, count: int) -> Path:
    """Images of several shapes in two classes."""
    for number in range(count):
        path = folder / ("cat", "dog")[number % 2] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(number, *[(40, 60), (60, 40), (33, 33), (20, 90)][number % 4]).save(path)
    return folder


def toy_job(
    data: Path,
    annotator: Annotator | None = None,
    top_k: int = 3,
    fit: Fit = "square",
    flip: bool = False,
    class_map: ClassMap | None = None,
    records_per_shard: int = 4,
    split: str | None = None,
) -> Job:
    """A job with small shards."""
    annotator = annotator or toy_annotator()
    canvas = Canvas(fit, annotator.image_size, annotator.stride, annotator.interpolation)
    return Job(open_source(str(data), split), annotator, canvas, top_k, flip, class_map, records_per_shard)


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a store, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
