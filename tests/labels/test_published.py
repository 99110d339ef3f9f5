"""Published targets and losses against numbers of the released code, and against torchvision's RoIAlign."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.ops import roi_align

from alltokens.geometry.view import View
from alltokens.labels.align import image_targets, token_targets
from alltokens.labels.published import published_loss, published_targets, published_view
from alltokens.labels.score_map import ScoreMaps

from .score_maps import dense_logits, difference, random_maps

GOLDEN = Path(os.environ.get("ALLTOKENS_GOLDEN", Path(__file__).parents[3] / "shared" / "golden"))

needs_golden = pytest.mark.skipif(
    not (GOLDEN / "token_targets.npz").is_file(),
    reason=f"needs token_targets.npz in {GOLDEN}; ALLTOKENS_GOLDEN names its folder",
)


def golden(name: str) -> Tensor:
    """An array of the released code's."""
    with np.load(GOLDEN / "token_targets.npz") as arrays:
        return torch.from_numpy(arrays[name])


def golden_maps() -> ScoreMaps:
    """The score maps it was given; the normalizer is not used by its rule."""
    logits = golden("logits")
    return ScoreMaps.of_whole_images(golden("class_ids"), logits, logits.logsumexp(1))


@needs_golden
@pytest.mark.parametrize("side", [14, 24])
@pytest.mark.parametrize(("ending", "smoothing"), [("", 0.0), ("_smooth", 0.1)])
def test_targets_are_those_of_the_released_code(side: int, ending: str, smoothing: float) -> None:
    truth, image, *tokens = golden(f"targets_published_{side}{ending}").unbind(2)
    maps, crops = golden_maps(), golden("crop_top_left_height_width")
    ours = {
        "truth": image_targets(golden("classes"), 50, smoothing=smoothing),
        "image": published_targets(maps, crops, (1, 1), 50, smoothing).dense()[:, 0],
        "tokens": published_targets(maps, crops, (side, side), 50, smoothing).dense(),
    }
    theirs = {"truth": truth, "image": image, "tokens": torch.stack(tokens, 1)}
    for name in theirs:
        assert (ours[name] - theirs[name]).abs().max() < 1e-5, name
        assert difference(ours[name], theirs[name]) < 1e-5, name


@needs_golden
@pytest.mark.parametrize("box", [(0, 0, 0, 0), (2, 3, 9, 12)])
@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_the_loss_is_that_of_the_released_code(box: tuple[int, int, int, int], beta: float) -> None:
    maps, crops = golden_maps(), golden("crop_top_left_height_width")
    image, tokens = (published_targets(maps, crops, grid, 50) for grid in ((1, 1), (14, 14)))
    mixed = (box[2] - box[0]) * (box[3] - box[1]) / 196
    ours = published_loss(golden("image_logits"), golden("token_logits"), image, tokens, mixed, beta)
    theirs = golden(f"loss_box{'_'.join(map(str, box))}_beta{beta}")
    assert difference(ours, theirs) < 1e-5


@pytest.mark.parametrize("grid", [(14, 14), (5, 5), (1, 1), (20, 24)])
def test_targets_are_roi_align_of_the_transposed_crop(grid: tuple[int, int]) -> None:
    torch.manual_seed(0)
    maps = random_maps(16, 5, 12, 12, 30)
    crops = torch.rand(16, 4).clamp(min=0.05)
    crops[:, :2] *= 1 - crops[:, 2:]
    crops[0] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    corners = torch.cat((crops[:, :2], crops[:, :2] + crops[:, 2:]), 1) * 12 - 0.5
    boxes = torch.cat((torch.arange(16.0)[:, None], corners), 1)
    theirs = roi_align(dense_logits(maps, 30), boxes, grid).softmax(1).flatten(2).mT
    ours = published_targets(maps, crops, grid, 30).dense()
    assert (ours - theirs).abs().max() < 1e-5


def test_smoothed_targets_sum_to_more_than_one() -> None:
    targets = published_targets(random_maps(1, 5, 6, 6, 20), torch.tensor([[0.1, 0.2, 0.5, 0.6]]), (3, 3), 20, 0.1)
    torch.testing.assert_close(targets.dense().sum(-1), torch.full((1, 9), 1 + 0.1 / 20))


@pytest.mark.parametrize("flipped", [False, True])
def test_a_published_view_reads_what_the_released_code_reads(flipped: bool) -> None:
    # Logits that grow evenly down and across, where it does not matter at how many points a token is read.
    down, across = torch.meshgrid(torch.arange(18.0), torch.arange(18.0), indexing="ij")
    logits = (0.1 * down + 0.3 * across)[None, None]
    maps = ScoreMaps.of_whole_images(torch.ones(1, 1, 18, 18, dtype=torch.int32), logits, logits.logsumexp(1))
    seen = View.of(400, 500).crop(60, 150, 180, 250).resize(224, 224)
    crop = (60 / 400, 150 / 500, 180 / 400, 250 / 500)
    theirs = published_targets(maps, torch.tensor([crop]), (4, 4), 5).dense().view(4, 4, 5)
    theirs = theirs.flip(1) if flipped else theirs
    view = published_view((seen.hflip() if flipped else seen).normalized(), crop)
    ours = token_targets(maps, view[None], (4, 4), 5).dense().view(4, 4, 5)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    exact = token_targets(maps, [seen], (4, 4), 5).dense().view(4, 4, 5)
    assert (ours - exact).abs().max() > 0.05
