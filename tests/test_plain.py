"""Configs survive the way to YAML and back, and every mistake in between is named."""

from dataclasses import dataclass

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alltokens.errors import UserError
from alltokens.models.config import (
    ClassAttention,
    ConvStem,
    GroupNorm,
    HMLPStem,
    LayerNorm,
    LayerScale,
    LinearStem,
    Scaled,
    ViTConfig,
)
from alltokens.plain import from_plain, to_plain

SMALL = ViTConfig(width=8, depth=2, heads=2)


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """Has one of each simple type."""

    count: int
    rate: float = 0.5
    name: str = "leaf"
    on: bool = False


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Has leaves in a tuple that may be missing."""

    leaves: tuple[Leaf | ConvStem, ...] = ()
    pair: tuple[int, str] | None = None


numbers = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
stems = st.one_of(
    st.builds(LinearStem, patch=st.just(16), norm=st.sampled_from(["batch", "layer", "none"])),
    st.builds(ConvStem, channels=st.integers(1, 64), activation=st.sampled_from(["relu", "gelu", "none"])),
    st.builds(HMLPStem),
)
residuals = st.one_of(
    st.builds(Scaled, divide_by=numbers), st.builds(LayerScale, initial=numbers, learned=st.booleans())
)
configs = st.builds(
    ViTConfig,
    width=st.just(8),
    depth=st.just(2),
    heads=st.sampled_from([1, 2]),
    mlp_ratio=numbers,
    stem=stems,
    residual=residuals,
    norm=st.one_of(st.builds(LayerNorm, eps=numbers), st.builds(GroupNorm, groups=st.sampled_from([1, 2]))),
    class_token_at=st.just(2),
    class_position=st.just(False),
    class_attention=st.builds(ClassAttention, class_in_keys=st.booleans(), residual=st.none() | residuals),
    qkv_bias=st.booleans(),
    image_size=st.tuples(st.sampled_from([16, 32]), st.sampled_from([16, 48])),
)


@given(configs)
def test_a_config_survives_plain_data(config):
    assert from_plain(ViTConfig, to_plain(config)) == config


@given(configs)
def test_a_config_survives_yaml(config):
    assert from_plain(ViTConfig, yaml.safe_load(yaml.safe_dump(to_plain(config), sort_keys=False))) == config


@given(st.lists(st.builds(Leaf, count=st.integers(), name=st.text(), on=st.booleans())), st.integers(), st.text())
def test_tuples_of_dataclasses_survive(leaves, first, second):
    tree = Tree(leaves=(*leaves, ConvStem()), pair=(first, second))
    assert from_plain(Tree, to_plain(tree)) == tree


def test_only_a_field_of_several_classes_says_its_kind():
    config = ViTConfig(
        width=8, depth=2, heads=2, class_token_at=2, class_position=False, class_attention=ClassAttention()
    )
    plain = to_plain(config)
    assert plain["stem"] == {"kind": "LinearStem", "patch": 16, "norm": "none", "activation": "none"}
    assert plain["class_attention"] == {"depth": 2, "class_in_keys": True, "residual": None}
    assert plain["image_size"] == [224, 224]


def test_a_key_left_out_takes_its_default():
    assert from_plain(ViTConfig, {"width": 8, "depth": 2, "heads": 2}) == SMALL


def test_an_integer_is_a_number():
    rate = from_plain(Leaf, {"count": 1, "rate": 2}).rate
    assert (rate, type(rate)) == (2.0, float)


def test_a_config_checks_itself():
    with pytest.raises(UserError, match="width must be divisible by heads; got width=9, heads=2"):
        from_plain(ViTConfig, {"width": 9, "depth": 2, "heads": 2})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"widht": 8}, "unknown key 'widht'; did you mean width, head_width?"),
        ({"zzzzzz": 8}, "unknown key 'zzzzzz'"),
        (
            {"stem": {"kind": "ConvStem", "kernel": [3]}},
            "unknown key 'stem.kernel'; did you mean kernels?",
        ),
        ({"width": 8.5}, "width must be an integer; got 8.5"),
        ({"width": True}, "width must be an integer; got True"),
        ({"qkv_bias": "yes"}, "qkv_bias must be true or false; got 'yes'"),
        ({"drop_path": None}, "drop_path must be a number; got None"),
        (
            {"drop_path": "1e-5"},
            "drop_path must be a number; got '1e-5'; YAML takes a number with a point and no quotes, such as 1.0e-5",
        ),
        ({"class_token_at": "0"}, "class_token_at must be an integer; got '0'"),
        (
            {"positions": "lerned"},
            "positions must be one of learned, sinusoidal, relative, none; got 'lerned'; did you mean learned?",
        ),
        ({"image_size": 224}, "image_size must be a list; got 224"),
        ({"image_size": [224]}, "image_size must be a list of 2; got [224]"),
        ({"image_size": [224, "a"]}, "image_size[1] must be an integer; got 'a'"),
        (
            {"norm": "LayerNorm"},
            "norm must be a mapping with a kind, one of LayerNorm, GroupNorm, NoNorm; got 'LayerNorm'",
        ),
        (
            {"norm": {"eps": 1.0}},
            "norm must be a mapping with a kind, one of LayerNorm, GroupNorm, NoNorm; got {'eps': 1.0}",
        ),
        (
            {"norm": {"kind": "LayrNorm"}},
            "norm.kind must be one of LayerNorm, GroupNorm, NoNorm; got 'LayrNorm'; "
            "did you mean LayerNorm, GroupNorm, NoNorm?",
        ),
        ({"norm": {"kind": ["a"]}}, "norm.kind must be one of LayerNorm, GroupNorm, NoNorm; got ['a']"),
        ({"norm": {"kind": {"a": 1}}}, "norm.kind must be one of LayerNorm, GroupNorm, NoNorm; got {'a': 1}"),
        ({"norm": {"kind": None}}, "norm.kind must be one of LayerNorm, GroupNorm, NoNorm; got None"),
        ({"norm": {"kind": "GroupNorm", "groups": "2"}}, "norm.groups must be an integer; got '2'"),
        ({"class_attention": 2}, "class_attention must be a mapping; got 2"),
    ],
)
def test_a_mistake_is_named_with_its_dotted_key(change, sentence):
    with pytest.raises(UserError) as raised:
        from_plain(ViTConfig, to_plain(SMALL) | change)
    assert str(raised.value) == sentence


def test_a_missing_key_is_named():
    with pytest.raises(UserError) as raised:
        from_plain(Tree, {"leaves": [{"kind": "Leaf", "rate": 1.0}]})
    assert str(raised.value) == "missing key 'leaves[0].count': Leaf needs it"


def test_data_that_is_no_mapping_is_an_error():
    with pytest.raises(UserError) as raised:
        from_plain(ViTConfig, [1, 2])
    assert str(raised.value) == "ViTConfig must be a mapping; got [1, 2]"


def test_text_where_a_field_holds_text_is_required():
    with pytest.raises(UserError, match="name must be text; got 3"):
        from_plain(Leaf, {"count": 1, "name": 3})
