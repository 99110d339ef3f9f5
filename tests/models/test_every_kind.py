"""Every kind of part: gradients reach each parameter, and each tensor moves the logits."""

import pytest
import torch

from ..kinds import DROPPING, KINDS, answers, images_for, lively


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_gradients_reach_every_parameter(kind, training):
    model = lively(KINDS[kind]).train(training)
    sum(logits.square().sum() for logits in answers(model, images_for(KINDS[kind]))).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
        else:
            assert parameter.grad is None, name


def softmax_cancels(key: str) -> bool:
    """What is added to all logits of a query alike: the bias that talking heads add before the softmax."""
    return key.endswith("operation.before_bias")


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_wrecking_any_tensor_moves_the_logits(kind):
    model = lively(KINDS[kind]).double().eval()
    images = images_for(KINDS[kind]).double()
    before = answers(model, images)
    for key, tensor in model.state_dict().items():
        if key.endswith("num_batches_tracked"):
            continue
        kept = tensor.clone()
        # Running variances stay positive.
        tensor += 1.5 + torch.sin(1 + 0.7 * torch.arange(tensor.numel(), dtype=torch.float64)).reshape(tensor.shape)
        moved = max((old - new).abs().max() for old, new in zip(before, answers(model, images), strict=True))
        tensor.copy_(kept)
        if softmax_cancels(key):
            assert moved < 1e-12, key
        else:
            assert moved > 1e-3, key


@torch.no_grad()
def test_the_bias_of_keys_alone_cannot_move_the_logits():
    model = lively(KINDS["vit"]).double().eval()
    images = images_for(KINDS["vit"]).double()
    before = model(images).image_logits
    model.blocks[0].attention.input.bias.unflatten(0, (3, -1))[1].add_(1.0)
    torch.testing.assert_close(model(images).image_logits, before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("kind", [*KINDS, "dropping"])
def test_autocast_to_bfloat16_stays_near_the_float32_answer(kind, training):
    config = DROPPING if kind == "dropping" else KINDS[kind]
    model = lively(config).train(training)
    images = images_for(config)
    torch.manual_seed(0)
    expected = answers(model, images)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        found = answers(model, images)
    sum(logits.float().square().sum() for logits in found).backward()
    assert all(x.grad is not None and x.grad.dtype == x.dtype for x in model.parameters() if x.requires_grad)
    if kind != "dropping":  # Attention's kernel of another type draws its dropout otherwise.
        for exact, rounded in zip(expected, found, strict=True):
            assert (rounded - exact).abs().max() < 0.1 * exact.abs().max()
