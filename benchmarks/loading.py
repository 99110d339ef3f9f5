"""Images a second from JPEG files to augmented batches, what each stage of a sample takes, and timm's loader beside it.

    python benchmarks/loading.py --photos FOLDER

500 x 375 JPEGs of quality 90, the recipe of LV-ViT, at 224 and at 128 pixels. `milliseconds an image`: one process, the
decoders that are installed and the stages of our sample. `images a second`: whole loaders with all cores as workers,
their batches copied to the device; `peer` is timm's, with the same strings. Written to benchmarks/results/loading.json
(loading_cpu.json without a GPU).
"""

import argparse
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from photos import image_folder, jpegs
from PIL import Image
from timing import elapsed, environment, write_results
from timm.data import ImageDataset, create_loader
from timm.data.auto_augment import NAME_TO_OP

from alltokens.augment import photometric
from alltokens.augment.photometric import posterize_pillow
from alltokens.augment.pipeline import AugmentConfig, Draw
from alltokens.data.batch import Batch
from alltokens.data.loader import train_batches
from alltokens.data.order import Share
from alltokens.data.samples import TrainSamples, scale_of
from alltokens.sources.decode import open_upright, tensor_of
from alltokens.sources.source import open_source

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
CORES = len(os.sched_getaffinity(0))
POLICY = "rand-m9-mstd0.5-inc1"
SIZES, CLASSES = (224, 128), 8
PHOTOS, ROUNDS = 128, 5
BATCH = 256 if CUDA else 64
COUNTED = 16 if CUDA else 8
"""Batches of a loader that are timed, after the first ones."""


def milliseconds(calls: dict[str, Callable[[int], Any]]) -> dict[str, float]:
    """Processor time of one call of each for a photo: the median of several turns over all photos."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 1):
        for name, call in calls.items():
            start = time.process_time()
            for row in range(PHOTOS):
                call(row)
            if turn:
                times[name].append((time.process_time() - start) / PHOTOS * 1000)
    return {name: round(statistics.median(values), 4) for name, values in times.items()}


def decoders(files: list[bytes]) -> dict[str, float]:
    """Those that are installed; Pillow's draft decodes a JPEG at a part of its size."""

    def pillow(scale: int, row: int) -> None:
        image = Image.open(io.BytesIO(files[row]))
        image.draft("RGB", (image.width // scale, image.height // scale))
        image.load()

    def decode_bytes(decode: Callable[[bytes], Any], row: int) -> None:
        decode(files[row])

    calls: dict[str, Callable[[int], Any]] = {f"pillow, 1/{scale}": partial(pillow, scale) for scale in (1, 2, 4, 8)}
    for name, module in (("simplejpeg", "simplejpeg"), ("torchcodec", "torchcodec.decoders")):
        with suppress(ImportError, AttributeError, RuntimeError):  # or too old, or without libraries that it needs
            calls[name] = partial(decode_bytes, import_module(module).decode_jpeg)
    with suppress(ImportError, AttributeError):
        deprecated = import_module("torchvision.io").decode_jpeg
        calls["torchvision"] = lambda row: deprecated(torch.frombuffer(bytearray(files[row]), dtype=torch.uint8))
    return milliseconds(calls)


def stages(samples: TrainSamples) -> dict[str, float]:
    """One sample in its parts, each with what the part before it made, and as a whole."""
    source, augment = samples.source, samples.augment
    data = [cast(bytes, source.load(row)) for row in range(PHOTOS)]
    draws = [augment.draw(375, 500, torch.Generator().manual_seed(row)) for row in range(PHOTOS)]
    scale = [scale_of(draw.view, (1, 2, 4, 8)) for draw in draws]
    draws = [replace(draw, view=draw.view.coarser(part)) for draw, part in zip(draws, scale, strict=True)]
    images = [open_upright(part).decoded(size) for part, size in zip(data, scale, strict=True)]
    canvases = [show(draw, image) for draw, image in zip(draws, images, strict=True)]
    left = samples.left_to("device")
    return milliseconds(
        {
            "read": source.load,
            "decode": lambda row: open_upright(data[row]).decoded(scale[row]),
            "draw": lambda row: augment.draw(375, 500, torch.Generator().manual_seed(row)),
            "view": lambda row: show(draws[row], images[row]),
            "recolour": lambda row: photometric.apply_pillow(canvases[row], draws[row].operations),
            "to tensor": lambda row: tensor_of(canvases[row]),
            "sample": lambda row: samples.sample(0, row, row),
            "decode to tensor": lambda row: open_upright(data[row]).pixels(scale[row]),
            "sample left to the device": lambda row: left.sample(0, row, row),
        }
    )


def show(draw: Draw, image: Image.Image) -> Image.Image:
    """An image through its view."""
    return draw.view.apply(image, draw.interpolation, draw.fill)


def ours(samples: TrainSamples) -> Iterator[Batch]:
    """Batches on the device, one epoch after the other."""
    for batch in train_batches(samples, Share(batch=BATCH), range(10**6), workers=CORES, device=DEVICE):
        yield batch.to(DEVICE)


def timms(root: Path, size: tuple[int, int]) -> Iterator[Any]:
    """The same by timm's loader, which normalises as well."""
    # timm's own keeps 0 bits now and then, which newer Pillows refuse.
    NAME_TO_OP["PosterizeIncreasing"] = lambda image, bits, **_: posterize_pillow(image, bits)
    loader: Any = create_loader(
        ImageDataset(str(root)),
        (3, *size),
        BATCH,
        is_training=True,
        auto_augment=POLICY,
        interpolation="random",
        color_jitter=0.0,
        num_workers=CORES,
        pin_memory=CUDA,
        device=DEVICE,
        use_prefetcher=CUDA,
    )
    while True:
        yield from loader


def rate(batches: Iterator[Any]) -> float:
    """Images a second once the workers are at work, those left out that were made before they were asked for."""
    for _ in range(2 * CORES + 2):
        next(batches)
    return BATCH * COUNTED / elapsed(lambda: next(batches), COUNTED)


def loaders(samples: TrainSamples, root: Path) -> dict[str, float]:
    """Images a second of each."""
    left = samples.left_to("device")
    rivals: dict[str, Callable[[], Iterator[Any]]] = {
        "augmented by the workers": lambda: ours(samples),
        "left to the device": lambda: ours(left),
        "augmented on the device": lambda: (batch.augmented() for batch in ours(left)),
        "peer": lambda: timms(root, samples.augment.size),
    }
    return {name: round(rate(batches()), 1) for name, batches in rivals.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", required=True, help="a folder of photos in class folders")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    times: dict[str, dict[str, float]] = {"decoders": decoders(list(jpegs(arguments.photos)))}
    rates: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = image_folder(arguments.photos, Path(folder), BATCH * (COUNTED + 3 * CORES), CLASSES)
        source = open_source(str(root))
        for size in SIZES:
            samples = TrainSamples(source, None, source.classes, AugmentConfig(policy=POLICY), (size, size), seed=0)
            times[f"sample of {size} pixels"] = stages(samples)
            rates[f"{size} pixels"] = loaders(samples, root)
    results = {
        **environment(),
        "cores": CORES,
        "batch": BATCH,
        "milliseconds an image": times,
        "images a second": rates,
    }
    write_results("loading" if CUDA else "loading_cpu", results)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
