"""One image's score map as bytes: class ids, roots of probabilities and the normalizer, at a fixed stride."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from alltokens.labels.score_map import ScoreMaps
from alltokens.shapes import Bool, Float, Int

Records = NDArray[Any]

STEPS = 255
"""The largest code of a byte."""
TOGETHER = 32
"""Records decoded at once: few enough that what is made on the way stays in a core's cache."""
LOG_PROBABILITIES: NDArray[np.float32] = 2 * np.log(np.maximum(np.arange(STEPS + 1, dtype=np.float32), 1) / STEPS)
"""Of each code of a probability's square root, which is finest where it is small; 0 is no code, and reads as 1 does."""


def record_dtype(classes: int, top_k: int, cells: int) -> np.dtype[np.void]:
    """The layout for maps of at most this many cells, one cell after the other; little endian, nothing between."""
    return np.dtype(
        [
            ("height", "<u2"),
            ("width", "<u2"),
            ("lowest", "<f4"),
            ("highest", "<f4"),
            ("classes", "<u2" if classes <= 65_536 else "<u4", (cells, top_k)),
            ("roots", "u1", (cells, top_k)),
            ("normalizer", "u1", (cells,)),
        ]
    )


def encode(maps: ScoreMaps, dtype: np.dtype[np.void]) -> Records:
    """Records [b] of the maps, made on their device and copied from it once."""
    cells = dtype["normalizer"].shape[0]
    place, own = cells_of(maps.grids, maps.normalizer.shape[2], cells)
    assert bool((maps.grids.prod(1) <= cells).all()), f"a map has more than the {cells} cells of a record"
    labelled = own[:, :1]
    # Cells that a map does not have are read from its first one here, so they change no extreme.
    normalizer = torch.where(labelled, maps.normalizer.float().flatten(1).gather(1, place), 0)
    each_class = place[:, None].expand(-1, maps.classes.shape[1], -1)
    logits = maps.logits.float().flatten(2).gather(2, each_class).mT
    classes = maps.classes.flatten(2).gather(2, each_class).mT
    finite = normalizer.isfinite() & logits.isfinite().all(2)
    assert bool((finite | ~own).all()), "logits and normalizers of a record must be finite"

    roots = (STEPS * ((logits - normalizer[..., None]) / 2).exp()).round().clamp(1, STEPS)
    lowest, highest = normalizer.amin(1, keepdim=True), normalizer.amax(1, keepdim=True)
    # Where all cells have one normalizer it is the lowest, and 0 / 1 is its code.
    spread = torch.where(highest > lowest, highest - lowest, 1)
    levels = (STEPS * ((normalizer - lowest) / spread)).round()

    ids = torch.int16 if dtype["classes"].base.itemsize == 2 else torch.int32
    used = own[..., None]
    fields = [
        maps.grids.to(torch.int16),
        lowest,
        highest,
        torch.where(used, classes, 0).to(ids).flatten(1),
        torch.where(used, roots, 0).to(torch.uint8).flatten(1),
        torch.where(own, levels, 0).to(torch.uint8),
    ]
    table = torch.cat([field.contiguous().view(torch.uint8) for field in fields], 1)
    return table.cpu().numpy().view(dtype)[:, 0]


def cells_of(
    grids: Int[Tensor, "b 2"], width: int, cells: int
) -> tuple[Int[Tensor, "b cells"], Bool[Tensor, "b cells"]]:
    """Where each cell of a record lies in a map padded to `width` columns, and whether the record has that cell."""
    cell = torch.arange(cells, device=grids.device)
    columns = grids[:, 1:].clamp(min=1)
    own = cell < grids.prod(1, keepdim=True)
    return (cell // columns * width + cell % columns) * own, own


def first_damaged(records: Records, classes: int) -> int | None:
    """The place of a record that no writer makes, which decoding would take for a map of another shape or class."""
    heights, widths = records["height"].astype(np.int64), records["width"].astype(np.int64)
    lowest, highest = records["lowest"], records["highest"]
    good = (heights * widths <= records.dtype["normalizer"].shape[0]) & ((heights == 0) == (widths == 0))
    good &= np.isfinite(lowest) & np.isfinite(highest) & (lowest <= highest)
    good &= records["classes"].max(axis=(1, 2)) < classes
    return None if good.all() else int(good.argmin())


def decode_records(records: Records, view: Float[Tensor, "2 3"]) -> ScoreMaps:
    """The maps of records that are not damaged, padded to the largest grid among them."""
    grids = np.stack((records["height"], records["width"]), 1).astype(np.int64)
    height, width = np.maximum(grids.max(0), 1).tolist()
    b, top_k = len(records), records.dtype["roots"].shape[1]
    # One allocation: freed and made anew each batch, three of them go back to the system in between, which costs
    # four times as long as decoding does.
    memory = np.zeros((b * (2 * top_k + 1), height, width), np.float32)
    classes = memory[: b * top_k].view(np.int32).reshape(b, top_k, height, width)
    logits = memory[b * top_k : 2 * b * top_k].reshape(b, top_k, height, width)
    normalizer = memory[2 * b * top_k :]
    for (h, w), rows in rows_by_grid(grids).items():
        for start in range(0, len(rows), TOGETHER):
            part = rows[start : start + TOGETHER]
            ids, scores, norms = decode_grid(records[part], h * w)
            classes[part, :, :h, :w] = ids.reshape(len(part), top_k, h, w)
            logits[part, :, :h, :w] = scores.reshape(len(part), top_k, h, w)
            normalizer[part, :h, :w] = norms.reshape(len(part), h, w)
    return ScoreMaps(
        classes=torch.from_numpy(classes),
        logits=torch.from_numpy(logits),
        normalizer=torch.from_numpy(normalizer),
        views=view.float().expand(b, 2, 3).clone(),
        grids=torch.from_numpy(grids),
    )


def rows_by_grid(grids: NDArray[np.int64]) -> dict[tuple[int, ...], list[int]]:
    """The records of each height and width."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, grid in enumerate(grids.tolist()):
        rows.setdefault(tuple(grid), []).append(row)
    return rows


def decode_grid(records: Records, cells: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Class ids [b, k, cells] as they lie, logits [b, k, cells] and the normalizer [b, cells]."""
    level = records["normalizer"][:, :cells].astype(np.float32) / STEPS
    # In this form the ends are exact, and nothing overflows on the way between them.
    normalizer = records["lowest"][:, None] * (1 - level) + records["highest"][:, None] * level
    roots = records["roots"][:, :cells].transpose(0, 2, 1).copy()
    # A byte never lies outside the table; with "clip" NumPy does not look.
    logits = LOG_PROBABILITIES.take(roots, mode="clip")
    logits += normalizer[:, None]
    return records["classes"][:, :cells].transpose(0, 2, 1), logits, normalizer
