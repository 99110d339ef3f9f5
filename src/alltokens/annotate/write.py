"""A data set's score maps, written shard by shard: a killed run goes on after the last shard that it finished."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from alltokens.annotate.annotator import Annotator
from alltokens.annotate.canvas import Canvas, Read, Reader
from alltokens.annotate.class_map import ClassMap
from alltokens.errors import UserError, require
from alltokens.labels.keys import keys_sha256
from alltokens.labels.meta import Plan
from alltokens.labels.record import encode
from alltokens.labels.score_map import ScoreMaps
from alltokens.labels.shards import begin, finish, finished_shards, write_shard
from alltokens.processes import Processes
from alltokens.shapes import UInt8
from alltokens.sources.decode import DECODER, EXIF
from alltokens.sources.source import Source
from alltokens.workers import begin_worker, end_workers_at_exit

FEWEST_IN_A_SHARD, MOST_IN_A_SHARD, USUAL_SHARDS = 256, 8192, 64
WAITING_FOR_DISK = 2
"""Batches that the network may be ahead of what is written."""


@dataclass(frozen=True)
class Job:
    """All that decides what a store will hold."""

    source: Source
    annotator: Annotator
    canvas: Canvas
    top_k: int
    flip: bool
    """Whether each map is the mean of the image's and of its mirror image's, turned back."""
    class_map: ClassMap | None
    records_per_shard: int

    def __post_init__(self) -> None:
        known = len(self.annotator.classes) if self.class_map is None else len(set(self.class_map.target) - {-1})
        require(1 <= self.top_k <= known, f"top_k must be between 1 and the {known} classes; got top_k={self.top_k}")

    @cached_property
    def plan(self) -> Plan:
        """What the store will say of itself."""
        return Plan(
            annotator=self.annotator.name,
            weights_sha256=self.annotator.weights_sha256,
            classes=self.annotator.classes if self.class_map is None else self.class_map.classes,
            class_map="" if self.class_map is None else sha256(str(self.class_map).encode()).hexdigest(),
            top_k=self.top_k,
            cells=most_cells(self.annotator, self.canvas),
            fit=self.canvas.fit,
            image_size=self.canvas.size,
            flip=self.flip,
            decoder=DECODER,
            exif=EXIF,
            images=len(self.source),
            keys_sha256=keys_sha256(self.source.keys),
            split=self.source.split,
            labels_sha256=self.source.labels_sha256,
            records_per_shard=self.records_per_shard,
        )


@dataclass(frozen=True)
class Machine:
    """What does the work; the result is the same."""

    device: torch.device
    batch: int
    workers: int
    """Processes that decode; 0 decodes between two batches."""


def usual_records_per_shard(images: int) -> int:
    """Few enough files for a large data set, little to lose by a kill for a small one."""
    return min(max(-(-images // USUAL_SHARDS), FEWEST_IN_A_SHARD), MOST_IN_A_SHARD)


def most_cells(annotator: Annotator, canvas: Canvas) -> int:
    """Cells of the largest map."""
    if canvas.fit == "rectangle":
        return (canvas.size[0] // canvas.stride) * (canvas.size[1] // canvas.stride)
    device = next((parameter.device for parameter in annotator.module.parameters()), None)
    with torch.inference_mode():
        height, width = annotator.module(torch.zeros(1, 3, *canvas.size, device=device)).shape[2:]
    return height * width


def annotate(job: Job, folder: Path, machine: Machine, report: Callable[[int, int], None]) -> None:
    """Fill the store, or what is left of it; `report` is told how many images are done, and of how many."""
    plan = job.plan
    with Processes.of_torchrun() as processes, processes.alone_in(folder):
        left = processes.agree(lambda: shards_left(folder, plan))
        mine = left[processes.rank :: processes.count]
        annotate_shards(job, folder, mine, machine, report)
        processes.wait()
        if processes.rank == 0:
            finish(folder, plan, job.source.keys)


def shards_left(folder: Path, plan: Plan) -> list[int]:
    """Shards that are not there yet, of a store that is begun or goes on."""
    begin(folder, plan)
    return sorted({*range(plan.shards)} - finished_shards(folder, plan))


def annotate_shards(
    job: Job, folder: Path, shards: Sequence[int], machine: Machine, report: Callable[[int, int], None]
) -> None:
    """Decoding, network and disk at the same time, one batch after the other."""
    batches = [batch for shard in shards for batch in batches_of(job.plan.rows_of(shard), machine.batch)]
    module = job.annotator.module.to(machine.device)
    if machine.device.type == "cuda":
        module = module.to(memory_format=torch.channels_last)
    end_workers_at_exit()
    loader = DataLoader[Read](
        cast(Dataset[Read], Reader(job.source, job.canvas, batches)),
        batch_size=None,
        num_workers=min(machine.workers, len(batches)),
        pin_memory=machine.device.type == "cuda",
        worker_init_fn=begin_worker,
    )
    total, done = sum(map(len, batches)), 0
    report(done, total)
    with ThreadPoolExecutor(max_workers=1) as disk:
        writer, waiting = Writer(job, folder), deque[Future[None]]()
        for rows, read in zip(batches, loader, strict=True):
            maps = [score(job, module, part.images, machine.device) for part in read.shown]
            waiting.append(disk.submit(writer.add, rows, read, maps))
            while len(waiting) > WAITING_FOR_DISK:
                waiting.popleft().result()
            done += len(rows)
            report(done, total)
        for written in waiting:
            written.result()


def batches_of(rows: range, size: int) -> list[range]:
    """The batches of one shard: none goes on into the next one, so that shards do not depend on each other."""
    return [rows[at : at + size] for at in range(0, len(rows), size)]


@torch.inference_mode()
def score(job: Job, module: torch.nn.Module, images: UInt8[torch.Tensor, "b 3 h w"], device: torch.device) -> ScoreMaps:
    """The annotator's maps of a batch, its top classes only."""
    annotator = job.annotator
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (annotator.mean, annotator.std))
    pixels = (images.to(device, non_blocking=True).float() / 255 - mean) / std
    on_gpu = device.type == "cuda"
    if on_gpu:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
        logits = module(pixels)
        if job.flip:
            logits = (logits + module(pixels.flip(3)).flip(3)) / 2
    logits = logits.float()
    # Over the annotator's own classes: what a class map drops stays mass that no class has.
    normalizer = logits.logsumexp(1)
    if job.class_map is not None:
        logits = job.class_map.apply(logits)
    top, classes = logits.topk(job.top_k, 1)
    return ScoreMaps.of_whole_images(classes, top, normalizer)


class Writer:
    """Collects the records of a shard and writes it when it is full; batches come in order."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder = job, folder
        self.dtype = job.plan.dtype
        self.records = np.zeros(0, self.dtype)
        self.unreadable: dict[int, str] = {}

    def add(self, rows: range, read: Read, maps: Sequence[ScoreMaps]) -> None:
        """One batch's maps, which the annotator may still be computing."""
        shard = rows.start // self.job.records_per_shard
        whole = self.job.plan.rows_of(shard)
        if rows.start == whole.start:
            self.records, self.unreadable = np.zeros(len(whole), self.dtype), {}
        for part, scores in zip(read.shown, maps, strict=True):
            self.require_finite(part.rows, scores)
            self.records[np.array(part.rows) - whole.start] = encode(scores, self.dtype)
        self.unreadable |= {row - whole.start: reason for row, reason in read.unreadable.items()}
        if rows.stop == whole.stop:
            write_shard(self.folder, shard, self.records, self.unreadable)

    def require_finite(self, rows: Sequence[int], maps: ScoreMaps) -> None:
        """Raise for an annotator that overflows, or whose weights are broken."""
        fine = (maps.logits.isfinite().all(1) & maps.normalizer.isfinite()).flatten(1).all(1).tolist()
        if not all(fine):
            key = self.job.source.keys[rows[fine.index(False)]]
            raise UserError(f"annotator '{self.job.annotator.name}' gives '{key}' scores that are not finite numbers")
