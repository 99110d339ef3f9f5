"""Size of a label store, speed of reading it, how well labels fit their crops, and speed of annotation.

    python benchmarks/labels.py --photos FOLDER                    # all parts, on real photos in class folders
    python benchmarks/labels.py --photos FOLDER --parts speed      # one part; the others keep their figures

`size` and `reading` annotate with EfficientNet-Lite2 at 576 pixels (18 x 18 cells, top 5) and scale what was written to
ImageNet's 1,281,167 images. `alignment` compares our targets and the published ones with the annotator run on the crop
itself. `speed` annotates JPEG files in memory with a ResNet-50 at 288 pixels, by `alltokens annotate`'s own loop and by
a plain one. Written to benchmarks/results/labels.json, each part with the machine it ran on.
"""

import argparse
import io
import os
import random
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from photos import jpegs
from PIL import Image
from timing import environment, median_seconds, read_results, write_results
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.functional import pil_to_tensor

from alltokens.annotate.annotator import Annotator, open_annotator
from alltokens.annotate.canvas import Canvas
from alltokens.annotate.write import Job, Machine, annotate
from alltokens.geometry.view import View
from alltokens.labels.align import token_targets
from alltokens.labels.keys import keys_sha256
from alltokens.labels.pack import pack
from alltokens.labels.published import published_targets
from alltokens.labels.released import to_released
from alltokens.labels.score_map import ScoreMaps
from alltokens.labels.shards import begin, finish, write_shard
from alltokens.labels.store import LabelStore
from alltokens.sources.source import Source, open_source

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
IMAGENET = 1_281_167
MANY = 1_300_000
CLASSES = 1000
CROPS_A_PHOTO = 4
CONFIDENT = 0.5
SPEED_IMAGES, SPEED_BATCH = (32_768, 256) if CUDA else (256, 16)


def annotated(photos: str, folder: Path, annotator: str, size: int) -> LabelStore:
    """The photos' store."""
    source = open_source(photos)
    network = open_annotator(annotator, size=size)
    canvas = Canvas("square", network.image_size, network.stride, network.interpolation)
    job = Job(source, network, canvas, top_k=5, flip=False, class_map=None, records_per_shard=8192)
    annotate(job, folder, Machine(DEVICE, 16, 0), lambda done, total: None)
    return LabelStore(folder)


def imagenet_keys() -> list[str]:
    """As many keys as ImageNet has images, of the form that they have."""
    source = random.Random(0)
    folders = sorted(f"n{source.randrange(1_440_000, 15_075_141):08}" for _ in range(CLASSES))
    numbers = [source.sample(range(30_000), -(-IMAGENET // CLASSES)) for _ in folders]
    keys = [f"{a}/{a}_{b}.JPEG" for a, own in zip(folders, numbers, strict=True) for b in own]
    return sorted(keys)[:IMAGENET]


def repeated(store: LabelStore, folder: Path, keys: list[str]) -> LabelStore:
    """A store with the given store's records over and over."""
    plan = replace(store.plan, images=len(keys), keys_sha256=keys_sha256(keys), records_per_shard=8192)
    begin(folder, plan)
    for number in range(plan.shards):
        rows = np.array(plan.rows_of(number)) % len(store)
        write_shard(folder, number, store.records(rows), {})
    finish(folder, plan, keys)
    return LabelStore(folder)


def bytes_of(folder: Path) -> int:
    """All files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def size(photos: str, folder: Path) -> dict[str, Any]:
    """Bytes of ImageNet's labels: a store of that many images is written whole, with real maps over and over."""
    store = annotated(photos, folder / "photos", "pip/efficientnet_lite2", 576)
    pack(store.path, folder / "photos.tar")
    large = repeated(store, folder / "imagenet", imagenet_keys())
    with tarfile.open(folder / "photos.tar") as archive:
        packed_maps = sum(member.size for member in archive if member.name.startswith("shards/"))
    # Real maps as they were packed, as many as ImageNet has; what comes beside them is ImageNet's own.
    beside = sum((large.path / name).stat().st_size for name in ("meta.json", "keys.zz", "unreadable.json"))
    packed = round(packed_maps / len(store) * IMAGENET + beside)
    return {
        "store_bytes_imagenet": bytes_of(large.path),
        "packed_bytes_imagenet": packed,
        "bytes_an_image": round(bytes_of(large.path) / IMAGENET, 1),
        "packed_bytes_an_image": round(packed / IMAGENET, 1),
    }


def reading(photos: str, folder: Path) -> dict[str, Any]:
    """Random reads of the same images from a store and from released files, and what opening a large store costs."""
    store = annotated(photos, folder / "photos", "pip/efficientnet_lite2", 576)
    keys = [f"n{number % CLASSES:08}/{number}.JPEG" for number in range(10_000)]
    large = repeated(store, folder / "large", keys)
    to_released(large.path, folder / "released")
    source = random.Random(0)

    def batch() -> list[str]:
        return source.choices(keys, k=256)

    def from_released() -> None:
        for key in batch():
            torch.load(folder / "released" / Path(key).with_suffix(".pt"), weights_only=True)

    rivals: dict[str, Callable[[], object]] = {
        "store": lambda: large.read(batch()),
        "one by one": lambda: [large[key] for key in batch()],
        "released": from_released,
    }
    seconds = median_seconds(rivals, 20.0)
    tiny = replace(store.plan, top_k=1, cells=1)
    tiny_keys = [f"{number:07}" for number in range(MANY)]
    plan = replace(tiny, images=MANY, keys_sha256=keys_sha256(tiny_keys), records_per_shard=8192)
    begin(folder / "many", plan)
    for number in range(plan.shards):
        records = np.zeros(plan.records_of(number), plan.dtype)
        records["height"], records["width"], records["roots"] = 1, 1, 255
        write_shard(folder / "many", number, records, {})
    finish(folder / "many", plan, tiny_keys)
    opening = subprocess.run(
        [sys.executable, __file__, "--open", str(folder / "many")], capture_output=True, text=True, check=True
    )
    seconds_to_open, megabytes = map(float, opening.stdout.split())
    return {
        "random_read_over_pt": round(seconds["released"] / seconds["store"], 2),
        "read_microseconds": {name: round(value / 256 * 1e6, 2) for name, value in seconds.items()},
        "open_seconds_1300000": seconds_to_open,
        "open_megabytes_1300000": megabytes,
    }


def opened(folder: str) -> None:
    """Open a store and read from it, in a process of its own: seconds, and megabytes more than before."""
    before, start = resident(), time.perf_counter()
    store = LabelStore(folder)
    seconds = time.perf_counter() - start
    store.read([f"{number:07}" for number in range(0, MANY, 100)])
    print(round(seconds, 4), round(resident() - before, 1))


def resident() -> float:
    """Megabytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def alignment(photos: str, folder: Path) -> dict[str, Any]:
    """Of the cells of which the annotator, shown the crop, is sure: how many do labels from the store name alike?"""
    store = annotated(photos, folder / "aligned", "pip/efficientnet_lite2", 520)
    source = open_source(photos)
    results: dict[str, Any] = {}
    for side in (260, 520):
        network = open_annotator("pip/efficientnet_lite2", size=side)
        counts = np.zeros(3)
        torch.manual_seed(0)
        for row, key in enumerate(source.keys):
            image = source.image(row)
            boxes = [RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(CROPS_A_PHOTO)]
            counts += agreeing(network, image, store.read([key] * CROPS_A_PHOTO), boxes, side)
        sure, ours, published = counts.tolist()
        results[f"agreement_over_published_{side}"] = round(ours / published, 3)
        results[f"agreement_{side}"] = {
            "cells": int(sure),
            "ours": round(ours / sure, 4),
            "published": round(published / sure, 4),
        }
    return results


@torch.inference_mode()
def agreeing(
    network: Annotator, image: Image.Image, maps: ScoreMaps, boxes: list[list[int]], side: int
) -> np.ndarray[Any, Any]:
    """Cells of which the annotator is sure, and how many of these our targets and the published ones name alike."""
    views = [View.of(image.height, image.width).crop(*box).resize(side, side) for box in boxes]
    pixels = torch.stack([pil_to_tensor(view.apply(image, network.interpolation)) for view in views]).float() / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (network.mean, network.std))
    seen = network.module(((pixels - mean) / std).to(DEVICE)).cpu().softmax(1)
    grid = seen.shape[2], seen.shape[3]
    certainty, first = seen.flatten(2).max(1)
    unit = torch.tensor([image.height, image.width] * 2)
    ours = token_targets(maps, views, grid, CLASSES)
    published = published_targets(maps, torch.tensor(boxes) / unit, grid, CLASSES)
    sure = certainty > CONFIDENT
    alike = [
        (named.ids.gather(2, named.values.argmax(2, keepdim=True))[..., 0] == first) & sure
        for named in (ours, published)
    ]
    return np.array([int(sure.sum()), *(int(one.sum()) for one in alike)])


class InMemory(Dataset[Any]):
    """JPEG files in memory as a plain loop reads them."""

    def __init__(self, files: list[bytes], side: int, images: int) -> None:
        self.files, self.side, self.images = files, side, images

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        image = Image.open(io.BytesIO(self.files[row % len(self.files)])).convert("RGB")
        image = image.resize((self.side, self.side), Image.Resampling.BICUBIC)
        return pil_to_tensor(image).float() / 255, row


class Loaded:
    """The same files for a Source."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files

    def __call__(self, row: int) -> bytes:
        return self.files[row % len(self.files)]


def plain_loop(network: Annotator, files: list[bytes], folder: Path, workers: int, count: int) -> None:
    """What people write: a loader, the network, topk, a file an image."""
    module = network.module.to(DEVICE)
    mean, std = (torch.tensor(values, device=DEVICE).view(3, 1, 1) for values in (network.mean, network.std))
    data = InMemory(files, network.image_size[0], count)
    loader = DataLoader(data, SPEED_BATCH, num_workers=workers, pin_memory=CUDA)
    with torch.no_grad():
        for images, rows in loader:
            logits = module((images.to(DEVICE, non_blocking=True) - mean) / std)
            top, classes = logits.topk(5, 1)
            both = torch.stack((top, classes.float()), 1).half().cpu()
            for row, label in zip(rows.tolist(), both, strict=True):
                torch.save(label.clone(), folder / f"{row}.pt")


def speed(photos: str, folder: Path) -> dict[str, Any]:
    """Images a second of both, each writing its labels, and of the network alone."""
    torch.manual_seed(0)
    plain = timm.create_model("resnet50")
    torch.save(plain.state_dict(), folder / "resnet50.pth")
    network = open_annotator("timm/resnet50", folder / "resnet50.pth", size=288)
    files = list(jpegs(photos))
    canvas = Canvas("square", network.image_size, network.stride, network.interpolation)
    workers = len(os.sched_getaffinity(0))
    machine = Machine(DEVICE, SPEED_BATCH, workers)
    seconds: dict[str, float] = {}
    # A shorter turn first, for what is done once: kernels are chosen, files are read.
    for turn, count in (("warm", SPEED_IMAGES // 8), ("timed", SPEED_IMAGES)):
        (folder / f"pt {turn}").mkdir()
        start = time.perf_counter()
        plain_loop(network, files, folder / f"pt {turn}", workers, count)
        seconds["plain"] = time.perf_counter() - start
        source = Source("memory", [f"{row}.jpg" for row in range(count)], [-1] * count, (), Loaded(files))
        job = Job(source, network, canvas, top_k=5, flip=False, class_map=None, records_per_shard=2048)
        start = time.perf_counter()
        annotate(job, folder / f"store {turn}", machine, lambda done, total, note="": None)
        seconds["ours"] = time.perf_counter() - start
    where = "" if CUDA else "_cpu"
    return {
        f"annotate_over_plain_loop{where}": round(seconds["plain"] / seconds["ours"], 3),
        f"annotate_images_per_second{where}": {
            **{name: round(SPEED_IMAGES / value, 1) for name, value in seconds.items()},
            "network alone": round(network_alone(network), 1),
        },
    }


@torch.inference_mode()
def network_alone(network: Annotator) -> float:
    """Images a second of the annotator on ready tensors."""
    order = torch.channels_last if CUDA else torch.contiguous_format
    module = network.module.to(DEVICE).to(memory_format=order)
    images = torch.randn(SPEED_BATCH, 3, 288, 288, device=DEVICE).contiguous(memory_format=order)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            module(images)

    return SPEED_BATCH / median_seconds({"network": step}, 3.0, rounds=3)["network"]


PARTS: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    "size": size,
    "reading": reading,
    "alignment": alignment,
    "speed": speed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", help="a folder of photos in class folders")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--open", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open:
        opened(arguments.open)
        return
    assert arguments.photos, "give --photos FOLDER"
    for part in arguments.parts:
        name = part if CUDA or part != "speed" else "speed_cpu"
        with tempfile.TemporaryDirectory() as folder:
            figures = PARTS[part](arguments.photos, Path(folder))
        results = read_results("labels")
        ran = results.pop("parts", {}) | {name: environment()}
        write_results("labels", results | figures | {"parts": ran})
        for key, value in figures.items():
            print(f"{key:32} {value}", flush=True)


if __name__ == "__main__":
    main()
