"""Score maps for the tests, and the dense tensors and loops that say what is right."""

from math import ceil, floor

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from alltokens.labels.align import SparseTargets
from alltokens.labels.score_map import ScoreMaps


def random_maps(b: int, k: int, h: int, w: int, classes: int, dtype: torch.dtype = torch.float32) -> ScoreMaps:
    """Top-k logits of random ones, over the whole image."""
    dense = 4 * torch.randn(b, classes, h, w, generator=torch.Generator().manual_seed(b + k + h + w), dtype=dtype)
    logits, ids = dense.topk(k, 1)
    return ScoreMaps.of_whole_images(ids, logits, dense.logsumexp(1))


def dense_logits(maps: ScoreMaps, classes: int) -> Tensor:
    """Zero wherever a cell does not name a class, [b, classes, h, w]."""
    b, _, h, w = maps.logits.shape
    return maps.logits.new_zeros(b, classes, h, w).scatter_(1, maps.classes.long(), maps.logits)


def dense_probabilities(maps: ScoreMaps, classes: int) -> Tensor:
    """Each cell's named probabilities, and its remaining mass shared by the other classes."""
    k = maps.logits.shape[1]
    named = (maps.logits - maps.normalizer[:, None]).exp()
    rest = (1 - named.sum(1, keepdim=True)) / (classes - k)
    return rest.repeat(1, classes, 1, 1).scatter_(1, maps.classes.long(), named)


def cell_average(dense: Tensor, views: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The mean of dense [b, classes, h, w] over 2 x 2 points a token, those on the map, one after the other."""
    b, classes, h, w = dense.shape
    mean, labelled = dense.new_zeros(b, grid[0] * grid[1], classes), torch.zeros(b, grid[0] * grid[1], dtype=torch.bool)
    for image in range(b):
        (xx, xy, x0), (yx, yy, y0) = views[image].tolist()
        for token in range(grid[0] * grid[1]):
            found = []
            for point in range(4):
                y = (token // grid[1] + 0.25 + 0.5 * (point // 2)) / grid[0]
                x = (token % grid[1] + 0.25 + 0.5 * (point % 2)) / grid[1]
                x, y = (xx * x + xy * y + x0) * w - 0.5, (yx * x + yy * y + y0) * h - 0.5
                if -1 <= x <= w and -1 <= y <= h:
                    found.append(bilinear(dense[image], min(max(x, 0), w - 1), min(max(y, 0), h - 1)))
            if found:
                mean[image, token], labelled[image, token] = torch.stack(found).mean(0), True
    return mean, labelled


def bilinear(image: Tensor, x: float, y: float) -> Tensor:
    """Channels of [classes, h, w] at a point between the centres of its cells."""
    top = image[:, floor(y), floor(x)] * (1 - x % 1) + image[:, floor(y), ceil(x)] * (x % 1)
    bottom = image[:, ceil(y), floor(x)] * (1 - x % 1) + image[:, ceil(y), ceil(x)] * (x % 1)
    return top * (1 - y % 1) + bottom * (y % 1)


def crop_view(top: float, left: float, height: float, width: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """The view of a crop given in parts of the image."""
    return torch.tensor([[width, 0, left], [0, height, top]], dtype=dtype)


def turned_views(dtype: torch.dtype) -> Tensor:
    """Rotated, sheared, flipped, and half outside the image."""
    return torch.tensor(
        [
            [[0.5, -0.3, 0.4], [0.4, 0.6, -0.1]],
            [[0.7, 0.2, 0.05], [0.0, 0.9, 0.02]],
            [[-0.8, 0.1, 0.9], [0.1, -0.7, 0.85]],
            [[0.9, 0.5, 0.4], [-0.6, 1.1, 0.5]],
        ],
        dtype=dtype,
    )


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Norm of the difference over the norm."""
    return (torch.linalg.norm((ours - theirs).double()) / torch.linalg.norm(theirs.double())).item()


def dense_loss(token_logits: Tensor, targets: SparseTargets) -> Tensor:
    """The definition: the mean over labelled tokens of the cross-entropy with the dense target."""
    losses = -(targets.dense() * token_logits.log_softmax(-1)).sum(-1)
    return losses[targets.labelled].mean()


class LargestTensor(TorchDispatchMode):
    """Remembers how many values the largest tensor had that any operation made."""

    values = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        self.values = max([self.values, *(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))])
        return out
