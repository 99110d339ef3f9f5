"""Token labels in a plain PyTorch loop: squares of one colour on another, painted here; seconds on a CPU.

python examples/train_with_token_labels.py
"""

import random

import torch
from torch import Tensor
from torch.nn import functional as F

import alltokens

COLOURS = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
CLASSES, BATCH, STEPS = len(COLOURS), 16, 60


def paint() -> tuple[Tensor, int]:
    """A noisy image [3, 80, 100] with a large square, and the class of that square."""
    square, ground = random.sample(range(CLASSES), 2)
    image = COLOURS[ground, :, None, None].repeat(1, 80, 100)
    top, left = random.randrange(20), random.randrange(40)
    image[:, top : top + 60, left : left + 60] = COLOURS[square, :, None, None]
    return image + 0.1 * torch.randn_like(image), square


def annotate(image: Tensor) -> alltokens.ScoreMap:
    """A label for each cell of the whole image; any classifier's logits [classes, h, w] can take the place of these."""
    cells = F.adaptive_avg_pool2d(image, (8, 10))
    distances = (cells - COLOURS[:, :, None, None]).square().sum(1)
    return alltokens.ScoreMap.from_dense(8 * (1 - distances), top_k=2)


def random_view() -> alltokens.View:
    """A crop as 64 x 64 pixels, perhaps flipped and turned: the image and its labels are read through the same view."""
    height, width = random.randrange(50, 81), random.randrange(50, 101)
    top, left = random.randrange(81 - height), random.randrange(101 - width)
    view = alltokens.View.of(80, 100).crop(top, left, height, width).resize(64, 64).rotate(random.uniform(-20, 20))
    return view.hflip() if random.random() < 0.5 else view


def main() -> None:
    random.seed(0)
    generator = torch.manual_seed(0)
    painted = [paint() for _ in range(128)]
    samples = [(image, square, annotate(image)) for image, square in painted]

    # A published model is alltokens.create_model("lvvit_s", classes=CLASSES, image_size=64).
    config = alltokens.ViTConfig(width=48, depth=2, heads=4, image_size=(64, 64), classes=CLASSES, token_head=True)
    model = alltokens.VisionTransformer(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(1, STEPS + 1):
        images, squares, score_maps = zip(*random.sample(samples, BATCH), strict=True)
        views = [random_view() for _ in images]
        canvases = torch.stack([view.apply(image) for view, image in zip(views, images, strict=True)])
        mix = alltokens.TokenMix.draw(BATCH, config.grid, generator)

        prediction = model.classify(model.encode(mix.swap(model.embed(canvases))))
        image_targets = mix.blend(F.one_hot(torch.tensor(squares), CLASSES).float())
        targets = alltokens.token_targets(score_maps, views, config.grid, CLASSES).each(mix.swap_targets)
        loss = F.cross_entropy(prediction.image_logits, image_targets)
        loss = loss + 0.5 * alltokens.token_cross_entropy(prediction.token_logits, targets)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0:
            print(f"step {step:2d}: loss {sum(losses[-10:]) / 10:.3f}")


if __name__ == "__main__":
    main()
