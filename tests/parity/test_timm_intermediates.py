"""forward_intermediates with timm's arguments gives timm's answers."""

from dataclasses import replace

import pytest
import torch

from alltokens.errors import UserError
from alltokens.models.zoo import find

from .sine_rule import sine_images
from .twins import our_twin, timm_twin

SIZE = (32, 48)


@pytest.fixture(scope="module")
def vits():
    theirs = timm_twin("deit_tiny_distilled_patch16_224", torch.float64, {"depth": 4, "img_size": SIZE})
    return our_twin(replace(find("deit_ti_distilled"), depth=4, image_size=SIZE), theirs.state_dict()), theirs


@pytest.fixture(scope="module")
def caits():
    theirs = timm_twin("cait_xxs24_224", torch.float64, {"depth": 4, "img_size": SIZE})
    config = replace(find("cait_xxs24"), depth=4, class_token_at=4, image_size=SIZE)
    return our_twin(config, theirs.state_dict()), theirs


@torch.no_grad()
def compare(models, arguments) -> None:
    ours, theirs = (
        model.forward_intermediates(sine_images(2, 3, *SIZE, torch.float64), **arguments) for model in models
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


ARGUMENTS = [
    {},
    {"indices": 2},
    {"indices": [0, 2]},
    {"indices": [-1]},
    {"output_fmt": "NLC"},
    {"norm": True},
    {"indices": [1], "stop_early": True},
    {"indices": [0, 3], "stop_early": True, "norm": True},
    {"indices": 2, "intermediates_only": True},
    {"indices": [1], "stop_early": True, "intermediates_only": True, "output_fmt": "NLC"},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_a_vit_gives_timms_intermediates(vits, arguments):
    compare(vits, arguments)


@pytest.mark.parametrize("output_fmt", ["NCHW", "NLC"])
@pytest.mark.parametrize("norm", [False, True])
def test_a_vit_gives_timms_prefix_tokens(vits, output_fmt, norm):
    compare(vits, {"indices": [0, 2], "return_prefix_tokens": True, "output_fmt": output_fmt, "norm": norm})


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_a_cait_gives_timms_intermediates(caits, arguments):
    compare(caits, arguments)


def test_another_format_is_refused(vits):
    with pytest.raises(UserError, match=r"^output_fmt must be NCHW or NLC; got 'NHWC'$"):
        vits[0].forward_intermediates(sine_images(1, 3, *SIZE, torch.float64), output_fmt="NHWC")
