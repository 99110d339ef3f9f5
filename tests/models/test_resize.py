"""Another image size, class count or channel count for a built model."""

from dataclasses import replace

import pytest
import torch
from timm.layers import resample_abs_pos_embed
from timm.models._manipulate import adapt_input_conv
from torch.nn import functional as F

from alltokens.errors import UserError
from alltokens.models.attention import DotProduct
from alltokens.models.config import LocalStem
from alltokens.models.resize import set_channels, set_classes, set_image_size

from ..kinds import KINDS, TINY, answers, images_for, lively

SIZES = [(32, 48), (64, 64), (16, 96), (48, 32)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_every_kind_of_model_takes_images_of_its_new_size(kind, size):
    model = lively(KINDS[kind]).eval()
    set_image_size(model, *size)
    assert model.config == replace(KINDS[kind], image_size=size)
    assert all(logits.isfinite().all() for logits in answers(model, images_for(model.config)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("distilled", [False, True])
def test_learned_positions_are_resampled_as_interpolate_does(size, distilled):
    model = lively(replace(TINY, distillation_token=distilled))
    table, first, (h, w) = model.positions.table.detach().clone(), 1 + distilled, model.config.grid
    set_image_size(model, *size)
    image = table[first:].reshape(1, h, w, -1).permute(0, 3, 1, 2)
    expected = F.interpolate(image, model.config.grid, mode="bicubic").permute(0, 2, 3, 1).reshape(-1, TINY.width)
    torch.testing.assert_close(model.positions.table[:first], table[:first], rtol=0, atol=0)
    torch.testing.assert_close(model.positions.table[first:], expected)


@pytest.mark.parametrize("size", SIZES)
def test_with_antialiasing_they_are_resampled_as_timm_does(size):
    model = lively(TINY)
    before, grid = model.positions.table.detach().clone(), list(model.config.grid)
    set_image_size(model, *size, antialias=True)
    expected = resample_abs_pos_embed(before[None], list(model.config.grid), grid, num_prefix_tokens=1)
    torch.testing.assert_close(model.positions.table, expected[0], rtol=0, atol=0)


def test_antialiasing_matters_when_a_grid_shrinks():
    model, smooth = (lively(replace(TINY, image_size=(96, 96))) for _ in range(2))
    set_image_size(model, 32, 32)
    set_image_size(smooth, 32, 32, antialias=True)
    assert (model.positions.table - smooth.positions.table).abs().max() > 0.01


@pytest.mark.parametrize("kind", ["vit", "relative", "parallel relative", "relative without class position"])
@torch.no_grad()
def test_the_same_size_changes_nothing(kind):
    model = lively(KINDS[kind]).eval()
    before = answers(model, images_for(model.config))
    set_image_size(model, *model.config.image_size)
    torch.testing.assert_close(answers(model, images_for(model.config)), before, rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("kind", ["relative", "parallel relative", "relative without class position"])
def test_relative_tables_are_resampled_over_offsets(kind, size):
    model = lively(KINDS[kind])
    tables = [module for module in model.modules() if isinstance(module, DotProduct)]
    before, (h, w) = [module.table.detach().clone() for module in tables], model.config.grid
    set_image_size(model, *size)
    new_h, new_w = model.config.grid
    for module, table in zip(tables, before, strict=True):
        count = (2 * h - 1) * (2 * w - 1)
        image = table[:count].reshape(1, 2 * h - 1, 2 * w - 1, -1).permute(0, 3, 1, 2)
        resized = F.interpolate(image, (2 * new_h - 1, 2 * new_w - 1), mode="bicubic")
        expected = torch.cat((resized.permute(0, 2, 3, 1).reshape(-1, table.shape[1]), table[count:]))
        torch.testing.assert_close(module.table, expected)


def test_a_size_that_the_patch_does_not_divide_is_refused_and_nothing_changes():
    model = lively(TINY)
    before = model.positions.table
    with pytest.raises(UserError, match=r"^image_size must be a multiple of the patch; got 40 x 48 with patch 16$"):
        set_image_size(model, 40, 48)
    assert model.positions.table is before
    assert model.config == TINY


def test_positions_stay_frozen_where_they_were():
    model = lively(TINY)
    model.positions.table.requires_grad_(False)
    set_image_size(model, 64, 64)
    assert not model.positions.table.requires_grad


@pytest.mark.parametrize("kind", ["vit", "lvvit", "cait distilled", "average pool"])
def test_fresh_heads_for_another_class_count(kind):
    model = lively(KINDS[kind]).eval()
    kept = {key: tensor.clone() for key, tensor in model.state_dict().items() if "head." not in key}
    set_classes(model, 7)
    assert model.config.classes == 7
    assert all(logits.shape[-1] == 7 for logits in answers(model, images_for(model.config)))
    state = model.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in kept.items())
    heads = [model.head, *filter(None, (model.token_head, model.distillation_head))]
    for head in heads:
        assert 0.0 < head.weight.abs().max() < 0.1
        assert head.bias.abs().max() == 0.0
        assert head.weight.requires_grad


def test_a_fresh_head_has_the_type_of_the_old():
    model = lively(TINY).double()
    set_classes(model, 7)
    assert model.head.weight.dtype == torch.float64


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("kind", ["vit", "lvvit", "hmlp stem", "levit stem", "local stem"])
@torch.no_grad()
def test_another_channel_count_follows_timm(kind, channels):
    model = lively(KINDS[kind])
    first = model.stem.subpatches if isinstance(model.config.stem, LocalStem) else model.stem[0]
    before = first.weight.clone()
    set_channels(model, channels)
    assert model.config == replace(KINDS[kind], channels=channels)
    torch.testing.assert_close(first.weight, adapt_input_conv(channels, before), rtol=0, atol=0)
    assert model(images_for(model.config)).image_logits.shape == (2, 5)


@torch.no_grad()
def test_a_grey_image_means_the_same_to_a_model_made_grey():
    model = lively(TINY).eval()
    grey = torch.randn(2, 1, 32, 48)
    expected = model(grey.expand(-1, 3, -1, -1)).image_logits
    set_channels(model, 1)
    torch.testing.assert_close(model(grey).image_logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_only_a_model_of_three_channels_is_given_others(channels):
    model = lively(replace(TINY, channels=2))
    with pytest.raises(UserError, match=rf"^only a model with 3 channels can be given {channels}; this one has 2$"):
        set_channels(model, channels)
