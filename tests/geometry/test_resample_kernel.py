"""The Triton kernels that resample boxes, run by Triton's interpreter, against the same views in float64."""

from itertools import product

import pytest
import torch
from torch import Tensor

from alltokens.geometry.resample import apply_batch
from alltokens.geometry.view import View

from ..kernels import run_with_kernels

SIZE = (9, 14)
VIEWS = {
    "straight": View.of(20, 30).resize(*SIZE),
    "flipped": View.of(20, 30).crop(3, 4, 11, 17).resize(*SIZE).hflip().vflip(),
    "enlarged": View.of(5, 4).resize(*SIZE),
    "shrunk much on one side": View.of(70, 6).resize(*SIZE),
    "partly outside": View.of(20, 30).crop(-5.3, 12.2, 20, 30).resize(*SIZE),
    "outside": View.of(20, 30).crop(100, 3, 20, 30).resize(*SIZE),
    "a pixel": View.of(1, 1).resize(*SIZE),
    "turned": View.of(20, 30).resize(*SIZE).rotate(25),
    "turned as it is": View.of(9, 14).rotate(-70),
    "turned and enlarged": View.of(20, 30).crop(5, 6, 4, 5).resize(*SIZE).rotate(15),
    "turned outside": View.of(20, 30).crop(100, 3, 20, 30).resize(*SIZE).rotate(25),
    "a pixel, turned": View.of(1, 1).resize(*SIZE).rotate(40),
    "sheared": View.of(20, 30).resize(*SIZE).shear(20, 10),
    "sheared and flipped": View.of(33, 21).hflip().shear(0, 25).resize(*SIZE).translate(3, -2),
}


@pytest.mark.slow
def test_the_triton_kernels_show_the_same() -> None:
    run_with_kernels("tests.geometry.test_resample_kernel")


def noise(view: View, seed: int) -> Tensor:
    """Random bytes [height, width, 3]."""
    return torch.randint(256, (*view.source, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def check_kernels() -> None:
    """All kinds of views in one batch, with both interpolations."""
    from alltokens.geometry.resample_kernel import apply_boxes

    device = "cuda" if torch.cuda.is_available() else "cpu"
    names, interpolations = zip(*product(VIEWS, ("bilinear", "bicubic")), strict=True)
    views = [VIEWS[name] for name in names]
    fills = [(index, 255 - index, 7) for index in range(len(views))]
    boxes = [noise(view, seed) for seed, view in enumerate(views)]
    pixels = torch.cat([box.reshape(-1, 3) for box in boxes])
    canvases = apply_boxes(pixels.to(device), views, interpolations, fills)
    assert canvases.dtype == torch.uint8
    assert canvases.is_contiguous(memory_format=torch.channels_last)
    for name, interpolation, view, fill, box, seen in zip(
        names, interpolations, views, fills, boxes, canvases.cpu(), strict=True
    ):
        image = box.permute(2, 0, 1)[None].double()
        exact = apply_batch(image, [view], interpolation, fill)[0].clamp(0, 255)
        error = (seen.double() - exact).abs().max()
        assert error <= 0.501, f"{name}, {interpolation}: {error}"


if __name__ == "__main__":
    check_kernels()
