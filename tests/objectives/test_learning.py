"""Every objective learns a small set of drawn digits by heart, on the CPU."""

from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.functional import pil_to_tensor

from alltokens.data.batch import Batch
from alltokens.labels.score_map import ScoreMap, ScoreMaps
from alltokens.models.config import ConvStem, ViTConfig
from alltokens.models.vit import VisionTransformer
from alltokens.objectives.classify import Classification, ClassifyConfig
from alltokens.objectives.mixing import MixConfig
from alltokens.objectives.token_label import TokenLabelConfig, TokenLabeling

IMAGES, CLASSES, SIZE, GRID = 64, 11, 32, (4, 4)
GROUND = CLASSES - 1
"""The class of cells without a digit."""
CONFIG = ViTConfig(
    width=48,
    depth=3,
    heads=4,
    mlp_ratio=2.0,
    stem=ConvStem(channels=16, kernels=(3, 3, 4), strides=(2, 1, 4)),
    image_size=(SIZE, SIZE),
    classes=CLASSES,
    token_head=True,
)
PLAIN = replace(CONFIG, token_head=False)


def draw_digit(digit: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A digit in a random place, size and brightness on noise, and which pixels it covers."""
    left, top = torch.randint(10, (2,), generator=generator).tolist()
    size = int(torch.randint(16, 24, (), generator=generator))
    picture = Image.new("L", (SIZE, SIZE))
    ImageDraw.Draw(picture).text((left, top - 4), str(digit), fill=255, font=ImageFont.load_default(size))
    drawn = pil_to_tensor(picture).float() / 255
    light = 120 + 100 * torch.rand(3, 1, 1, generator=generator)
    pixels = drawn * light + 40 * torch.rand(3, SIZE, SIZE, generator=generator)
    return pixels.to(torch.uint8), drawn[0]


def all_digits() -> Batch:
    """Every image once; a cell's label is the digit where it covers any of the cell."""
    generator = torch.Generator().manual_seed(0)
    digits = torch.arange(IMAGES) % 10
    images, covered = zip(*(draw_digit(int(digit), generator) for digit in digits), strict=True)
    maps = []
    for digit, mask in zip(digits, covered, strict=True):
        seen = F.adaptive_max_pool2d(mask[None], GRID)[0] > 0.2
        maps.append(ScoreMap.from_dense(8.0 * F.one_hot(torch.where(seen, digit, GROUND), CLASSES).movedim(2, 0), 2))
    return Batch(
        images=torch.stack(images),
        classes=digits,
        score_maps=ScoreMaps.stack(maps),
        views=torch.eye(2, 3).repeat(IMAGES, 1, 1),
        keys=tuple(map(str, range(IMAGES))),
        seeds=torch.zeros(IMAGES, dtype=torch.int64),
    )


def picked(batch: Batch, order: Tensor, seeds: Tensor) -> Batch:
    maps = batch.score_maps
    chosen = ScoreMaps(*(part[order] for part in (maps.classes, maps.logits, maps.normalizer, maps.views, maps.grids)))
    return Batch(batch.images[order], batch.classes[order], chosen, batch.views[order], batch.keys, seeds)


def learned(objective: nn.Module, steps: int) -> float:
    """Accuracy on the images that were learned from."""
    torch.manual_seed(0)
    batch = all_digits()
    optimizer = torch.optim.AdamW(objective.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        order = torch.randperm(IMAGES)
        losses = objective(picked(batch, order, torch.arange(IMAGES) + IMAGES * step))
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
        schedule.step()
    objective.eval()
    with torch.no_grad():
        return (objective.evaluate(batch).scores().argmax(1) == batch.classes).float().mean().item()


OBJECTIVES = {
    "token labels": lambda: TokenLabeling(VisionTransformer(CONFIG)),
    "token labels, some tokens": lambda: TokenLabeling(
        VisionTransformer(CONFIG), TokenLabelConfig(participation=0.5, image_target="blend", rule="probabilities")
    ),
    "classes": lambda: Classification(VisionTransformer(PLAIN)),
    "classes, not mixed": lambda: Classification(VisionTransformer(PLAIN), ClassifyConfig(mix=MixConfig(kind="none"))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_learns_its_images(name: str) -> None:
    torch.manual_seed(0)
    assert learned(OBJECTIVES[name](), steps=300) >= 0.95
