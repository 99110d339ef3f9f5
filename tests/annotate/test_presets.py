"""The paper's annotators: networks that timm has, at sizes of whole cells."""

import pytest
import timm
import torch
from timm.models import get_pretrained_cfg

from alltokens.annotate.annotator import open_annotator
from alltokens.annotate.presets import PRESETS
from alltokens.models.zoo import MODELS

PAPER = {
    *("nfnet_f6", "resnest269e", "efficientnet_l2"),
    *(f"efficientnet_b{number}" for number in range(3, 9)),
}
"""TL, section 4.1 and Figure 4, right."""


def test_every_annotator_of_the_paper_has_a_name_that_no_model_of_ours_has():
    assert set(PRESETS) == PAPER
    assert not PAPER & set(MODELS)


@pytest.mark.parametrize("name", PRESETS)
def test_the_weights_are_published_for_imagenets_classes(name):
    known = get_pretrained_cfg(PRESETS[name].timm_name)
    assert known.has_weights
    assert known.num_classes == 1000
    assert PRESETS[name].timm_name.endswith(f".{known.tag}")


@pytest.mark.parametrize("name", sorted(PAPER - {"efficientnet_l2"}))
def test_only_l2_has_seen_more_than_imagenet(name):
    assert PRESETS[name].timm_name.endswith("in1k")
    assert not {"jft", "ns", "in21k"} & set(get_pretrained_cfg(PRESETS[name].timm_name).tag.split("_"))
    assert "jft" in PRESETS["efficientnet_l2"].timm_name


@pytest.mark.parametrize("name", PRESETS)
def test_the_side_is_the_networks_own_up_to_whole_cells(name):
    preset, known = PRESETS[name], get_pretrained_cfg(PRESETS[name].timm_name)
    own = known.test_input_size or known.input_size
    assert preset.side == -(-own[1] // 32) * 32


def test_nfnet_f6_gives_the_papers_map_of_18_by_18():
    with torch.device("meta"):
        network = timm.create_model(PRESETS["nfnet_f6"].timm_name)
        assert network.forward_features(torch.empty(1, 3, 576, 576)).shape[2:] == (18, 18)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "b3.pth"
    torch.save(timm.create_model("tf_efficientnet_b3", num_classes=5).state_dict(), path)
    return path


def test_a_checkpoint_replaces_the_published_weights(checkpoint):
    annotator = open_annotator("efficientnet_b3", checkpoint)
    assert (annotator.name, annotator.image_size, annotator.stride) == ("efficientnet_b3", (320, 320), 32)
    assert annotator.mean == (0.485, 0.456, 0.406)
    assert annotator.any_size
    state = torch.load(checkpoint, weights_only=True)
    assert torch.equal(annotator.module.model.classifier.weight, state["classifier.weight"])


def test_a_size_replaces_the_presets(checkpoint):
    assert open_annotator("efficientnet_b3", checkpoint, 64).image_size == (64, 64)
