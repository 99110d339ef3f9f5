"""Published layouts under our names: what does not fit is named."""

from dataclasses import replace

import pytest
import timm
import torch

from alltokens.errors import UserError
from alltokens.models.config import HMLPStem
from alltokens.models.convert import from_published
from alltokens.models.vit import VisionTransformer
from alltokens.models.zoo import find

CONFIG = replace(find("vit_ti"), depth=1)


@pytest.fixture
def published():
    with torch.device("meta"):
        return timm.create_model("vit_tiny_patch16_224", depth=1).state_dict()


def test_a_fitting_state_gives_every_tensor_of_the_model(published):
    with torch.device("meta"):
        expected = VisionTransformer(CONFIG).state_dict()
    found = from_published(CONFIG, published)
    assert {key: tensor.shape for key, tensor in found.items()} == {key: x.shape for key, x in expected.items()}


def test_missing_tensors_are_counted_and_named(published):
    del published["head.bias"], published["cls_token"]
    with pytest.raises(
        UserError,
        match=r"^the weights do not fit this model: 2 tensors are missing and 0 are not part of it; "
        r"the first that differ are cls_token, head\.bias$",
    ):
        from_published(CONFIG, published)


def test_extra_tensors_are_counted_and_named(published):
    with pytest.raises(
        UserError,
        match=r"^the weights do not fit this model: 0 tensors are missing and 2 are not part of it; "
        r"the first that differ are extra\.a, extra\.b$",
    ):
        from_published(CONFIG, published | {"extra.b": torch.zeros(1), "extra.a": torch.zeros(1)})


def test_missing_tensors_are_named_before_extra_ones(published):
    published["a"] = published.pop("norm.weight")
    with pytest.raises(
        UserError, match=r"1 tensors are missing and 1 are .* the first that differ are norm\.weight, a$"
    ):
        from_published(CONFIG, published)


def test_a_stem_that_nobody_published_is_refused(published):
    sentence = r"^no published layout has a stem like HMLPStem\(norm='batch', activation='gelu'\)$"
    with pytest.raises(UserError, match=sentence):
        from_published(replace(CONFIG, stem=HMLPStem()), published)
