"""Speed of loading with views and labels over timm's transform, and of the sparse target step over the dense way.

    python benchmarks/views.py                   # synthetic photos
    python benchmarks/views.py --photos FOLDER   # JPEG files of yours, resized to 500 x 375

Loading: 500 x 375 JPEGs of quality 90 in memory, two workers, the recipe of LV-ViT, samples a second. Target step:
token targets from score maps and views, the loss and its gradient, for one batch on the device. Written to
benchmarks/results/views.json (views_cpu.json without a GPU).
"""

import argparse
import io
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy
import torch
from photos import jpegs
from PIL import Image
from timing import environment, median_seconds, write_results
from timm.data import create_transform
from timm.data.auto_augment import NAME_TO_OP
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.ops import roi_align
from torchvision.transforms.functional import pil_to_tensor

from alltokens.augment.photometric import posterize_pillow
from alltokens.augment.pipeline import Augment, AugmentConfig, apply
from alltokens.labels.align import token_targets
from alltokens.labels.score_map import ScoreMaps
from alltokens.labels.sparse_loss import token_cross_entropy

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
POLICY = "rand-m9-mstd0.5-inc1"
SIDE, SAMPLES, ROUNDS, WORKERS, BATCH = 224, 768, 7, 2, 64
TARGET_BATCH, CLASSES, GRID, MAP, TOP = (256 if CUDA else 16), 1000, 14, 18, 5


class Photos(Dataset[Any]):
    """JPEG files in memory, each decoded and augmented when it is asked for."""

    def __init__(self, files: list[bytes], kind: str) -> None:
        self.files, self.kind = files, kind
        self.augment = Augment(AugmentConfig(policy=POLICY), (SIDE, SIDE))
        # timm's own keeps 0 bits now and then, which newer Pillows refuse.
        NAME_TO_OP["PosterizeIncreasing"] = lambda image, bits, **_: posterize_pillow(image, bits)
        self.timm = create_transform(
            SIDE, is_training=True, auto_augment=POLICY, interpolation="random", color_jitter=None, normalize=False
        )
        # What a store of labels holds of an image, here of a few that repeat.
        source = numpy.random.default_rng(0)
        self.ids = source.integers(0, CLASSES, (len(files), TOP, MAP, MAP), dtype=numpy.uint16)
        self.logits = source.normal(4, 3, (len(files), TOP, MAP, MAP)).astype(numpy.float16)
        self.normalizer = source.normal(9, 1, (len(files), MAP, MAP)).astype(numpy.float16)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        place = index % len(self.files)
        image = Image.open(io.BytesIO(self.files[place])).convert("RGB")
        if self.kind == "timm":
            return self.timm(image)
        draw = self.augment.draw(image.height, image.width, torch.Generator().manual_seed(index))
        pixels = pil_to_tensor(apply(draw, image))
        if self.kind == "unlabelled":
            return pixels, draw.view.normalized()
        labels = (self.ids[place].astype(numpy.int32), self.logits[place], self.normalizer[place])
        return pixels, draw.view.normalized(), *map(torch.from_numpy, labels)


def loading(files: list[bytes]) -> dict[str, float]:
    """Samples a second of each way to load, in turns."""
    loaders = {
        kind: DataLoader(Photos(files, kind), BATCH, num_workers=WORKERS, persistent_workers=True, prefetch_factor=4)
        for kind in ("timm", "unlabelled", "labelled")
    }
    rates: dict[str, list[float]] = {kind: [] for kind in loaders}
    for turn in range(ROUNDS + 1):
        for kind, loader in loaders.items():
            start = time.perf_counter()
            for _ in loader:
                pass
            if turn:  # The first starts the workers.
                rates[kind].append(SAMPLES / (time.perf_counter() - start))
    return {kind: statistics.median(values) for kind, values in rates.items()}


def target_step() -> dict[str, float]:
    """Milliseconds of targets, loss and gradient for one batch, sparse and dense."""
    source = torch.Generator().manual_seed(0)
    shape = TARGET_BATCH, TOP, MAP, MAP
    # Five different classes for each cell.
    ids = torch.rand(TARGET_BATCH, CLASSES, MAP, MAP, generator=source).topk(TOP, 1).indices.int().to(DEVICE)
    logits = (4 + 3 * torch.randn(shape, generator=source)).to(DEVICE)
    maps = ScoreMaps.of_whole_images(ids, logits, logits.logsumexp(1))
    augment = Augment(AugmentConfig(policy=None), (SIDE, SIDE))
    views = [augment.draw(375, 500, source).view for _ in range(TARGET_BATCH)]
    canvas = torch.stack([view.normalized() for view in views]).to(DEVICE)
    dtype = torch.bfloat16 if CUDA else torch.float32
    answers = torch.randn(TARGET_BATCH, GRID * GRID, CLASSES, generator=source).to(DEVICE, dtype).requires_grad_()

    def step(loss: Callable[[], Tensor]) -> None:
        loss().backward()
        answers.grad = None

    def sparse() -> Tensor:
        return token_cross_entropy(answers, token_targets(maps, canvas, (GRID, GRID), CLASSES))

    def dense() -> Tensor:
        full = torch.zeros(TARGET_BATCH, CLASSES, MAP, MAP, device=DEVICE).scatter_(1, ids.long(), logits)
        corners = canvas @ torch.tensor([[0.0, 1], [0, 1], [1, 1]], device=DEVICE)
        boxes = torch.cat((corners.amin(2), corners.amax(2)), 1) * MAP
        pooled = roi_align(full, list(boxes[:, None]), (GRID, GRID), sampling_ratio=2, aligned=True)
        flipped = canvas[:, 0, 0] < 0
        pooled = torch.where(flipped[:, None, None, None], pooled.flip(3), pooled)
        targets = pooled.flatten(2).transpose(1, 2).softmax(2)
        return -(targets * F.log_softmax(answers.float(), 2)).sum(2).mean()

    difference = abs((sparse() - dense()).item())
    assert difference < (2e-2 if CUDA else 1e-3), f"the two losses differ by {difference}"
    seconds = median_seconds({"sparse": partial(step, sparse), "dense": partial(step, dense)}, 4.0)
    return {f"{kind}_ms": round(1000 * value, 3) for kind, value in seconds.items()}


def synthetic() -> Iterator[bytes]:
    """500 x 375 JPEGs of quality 90 of smooth noise with some grain."""
    source = numpy.random.default_rng(0)
    coarse = source.integers(0, 256, (64, 24, 32, 3), dtype=numpy.uint8)
    grain = source.normal(0, 8, (375, 500, 1))
    for one in coarse:
        smooth = numpy.array(Image.fromarray(one).resize((500, 375), Image.Resampling.BICUBIC))
        file = io.BytesIO()
        Image.fromarray((smooth + grain).clip(0, 255).astype(numpy.uint8)).save(file, "JPEG", quality=90)
        yield file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", help="a folder of JPEG files to use instead of synthetic ones")
    arguments = parser.parse_args()
    step = target_step()
    rates = loading(list(islice(jpegs(arguments.photos), 64) if arguments.photos else synthetic()))
    results = {
        **environment(),
        "labelled_over_unlabelled": round(rates["labelled"] / rates["unlabelled"], 4),
        "pipeline_over_timm": round(rates["labelled"] / rates["timm"], 4),
        "target_step_ms": step["sparse_ms"],
        "dense_over_sparse": round(step["dense_ms"] / step["sparse_ms"], 3),
        "target_batch": TARGET_BATCH,
        "dense_ms": step["dense_ms"],
        "samples_per_second": {kind: round(value, 1) for kind, value in rates.items()},
        "photos": "the user's" if arguments.photos else "synthetic",
    }
    write_results("views" if CUDA else "views_cpu", results)
    for key, value in results.items():
        print(f"{key:28} {value}")


if __name__ == "__main__":
    main()
