"""Cross-entropies of images and tokens beside their definitions, and means over steps."""

import pytest
import torch
from timm.loss import BinaryCrossEntropy
from torch.nn import functional as F

from alltokens.labels.align import token_targets
from alltokens.objectives.losses import binary_cross_entropy, image_cross_entropy, token_cross_entropies

from ..labels.score_maps import random_maps, turned_views


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_the_images_cross_entropy_is_torchs():
    logits, targets = normal(6, 5), normal(6, 5).flip(0).softmax(-1)
    torch.testing.assert_close(image_cross_entropy(logits, targets), F.cross_entropy(logits, targets))


def test_the_binary_cross_entropy_is_timms_without_a_threshold():
    logits, targets = normal(6, 5), normal(6, 5).flip(0).softmax(-1)
    expected = BinaryCrossEntropy(smoothing=0.0)(logits, targets)
    torch.testing.assert_close(binary_cross_entropy(logits, targets), expected)


def test_half_precision_logits_are_summed_in_float32():
    logits, targets = normal(6, 500).bfloat16(), normal(6, 500).softmax(-1).float()
    for compare in (image_cross_entropy, binary_cross_entropy):
        assert compare(logits, targets).dtype == torch.float32


@pytest.mark.parametrize("some", [False, True])
def test_each_image_has_the_mean_of_its_own_tokens(some):
    targets = token_targets(random_maps(4, 3, 4, 6, 5, torch.float64), turned_views(torch.float64), (3, 4), 5)
    assert len(targets.labelled.sum(1).unique()) > 1
    logits, counted = normal(4, 12, 5), normal(4, 12) > 0
    found = token_cross_entropies(logits, targets, counted if some else None)
    dense = targets.dense()
    for image in range(4):
        tokens = [
            token for token in range(12) if targets.labelled[image, token] and (counted[image, token] or not some)
        ]
        losses = [F.cross_entropy(logits[image, token], dense[image, token]) for token in tokens]
        torch.testing.assert_close(found[image], torch.stack(losses).mean())


def test_an_image_without_labels_has_no_token_loss():
    views = turned_views(torch.float64) + torch.tensor([[0.0, 0.0, 9.0], [0.0, 0.0, 9.0]])
    targets = token_targets(random_maps(4, 3, 4, 6, 5, torch.float64), views, (3, 4), 5)
    logits = normal(4, 12, 5).requires_grad_()
    found = token_cross_entropies(logits, targets)
    found.sum().backward()
    assert found.tolist() == [0, 0, 0, 0]
    assert not logits.grad.any()
