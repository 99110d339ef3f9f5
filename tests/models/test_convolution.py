"""Convolutions of stems against torch's own."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from alltokens.models.convolution import PatchConvolution, PixelConvolution, convolution, convolve_cells


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 2), (4, 4), (16, 16), (3, 1), (5, 3), (6, 2)])
@pytest.mark.parametrize("size", [(32, 48), (33, 47)])
def test_cells_of_pixels_give_the_same_answer_and_gradient(kernel, stride, bias, size):
    torch.manual_seed(0)
    layer = convolution(3, 5, kernel, stride, bias).double()
    assert isinstance(layer, PixelConvolution)
    images = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    compare(layer, convolve_cells(layer, images), images)


@pytest.mark.parametrize("patch", [2, 8])
@pytest.mark.parametrize("size", [(16, 24), (19, 31)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_patches_give_the_same_answer_and_gradient(patch, size, layout):
    torch.manual_seed(0)
    layer = convolution(6, 5, patch, patch, bias=True).double().to(memory_format=layout)
    assert isinstance(layer, PatchConvolution)
    images = torch.randn(2, 6, *size, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
    compare(layer, layer(images), images)


def test_what_overlaps_is_a_plain_convolution():
    assert type(convolution(6, 5, 3, 1, bias=True)) is nn.Conv2d


def compare(layer, answer, images):
    """With torch's convolution, and gradients by what they are asked for."""
    asked = [images, *layer.parameters()]
    expected = F.conv2d(images, layer.weight, layer.bias, layer.stride, layer.padding)
    weights = torch.randn_like(expected)
    torch.testing.assert_close(answer, expected, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad((output * weights).sum(), asked) for output in (answer, expected))
    for gradient, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-11)
