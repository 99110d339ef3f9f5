"""`alltokens describe` shows a model's stages, and any field of its config can be changed."""

import pytest
import yaml

from alltokens.cli.describe import model_stages
from alltokens.cli.main import main
from alltokens.models.config import LayerScale, ViTConfig
from alltokens.models.counts import count
from alltokens.models.zoo import find
from alltokens.plain import from_plain

NAMES = ["lvvit_s", "cait_xxs24", "deit_ti_distilled", "vit_ti_12x2", "vit_b_local"]


def described_config(out: str) -> ViTConfig:
    """The config at the end of what was printed."""
    return from_plain(ViTConfig, yaml.safe_load(out[out.index("\nwidth:") :]))


@pytest.mark.parametrize("name", NAMES)
def test_the_stages_add_up_to_the_model(name):
    assert sum(stage.parameters for stage in model_stages(find(name))) == count(find(name)).parameters


def test_stages_have_the_shapes_of_the_paper():
    assert [(stage.name, stage.output) for stage in model_stages(find("lvvit_s"))] == [
        ("stem", "14 x 14 x 384"),
        ("positions", ""),
        ("class tokens", "1 x 384"),
        ("trunk, 16 blocks", "197 x 384"),
        ("final norm", "197 x 384"),
        ("image head", "1000"),
        ("token head", "196 x 1000"),
    ]


def test_class_attention_is_a_stage_of_its_own():
    assert ("class attention, 2 blocks", "1 x 192") in [
        (stage.name, stage.output) for stage in model_stages(find("cait_xxs24"))
    ]


def test_it_prints_totals_accuracies_and_the_config(capsys):
    assert main(["describe", "lvvit_s"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("lvvit_s: 224 x 224 pixels, 1000 classes\n")
    assert "26,151,824 parameters, 6.55 GFLOPs" in out
    assert "printed: 83.3 % top-1 (TL, Table 1;" in out
    assert described_config(out) == find("lvvit_s")


def test_fields_can_be_changed(capsys):
    line = "describe lvvit_s --width 96 --depth 2 --image-size 64 96 --stem.kernels 3 3 3 8 --class-token-at None"
    assert main([*line.split(), "--class-position", "False"]) == 0
    out = capsys.readouterr().out
    config = described_config(out)
    assert (config.width, config.depth, config.grid, config.class_token_at) == (96, 2, (4, 6), None)
    assert config.stem.kernels == (3, 3, 3, 8)
    assert out.startswith("lvvit_s, changed: 64 x 96 pixels")
    assert "printed:" not in out


def test_a_field_of_several_classes_keeps_its_class(capsys):
    assert main("describe cait_xxs24 --residual.initial 0.5".split()) == 0
    assert described_config(capsys.readouterr().out).residual == LayerScale(initial=0.5)


def test_help_of_a_model_lists_fields_with_their_docstrings_and_its_values(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        main(["describe", "lvvit_s", "--help"])
    assert end.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--width INT" in out
    assert "Channels of every token. (default: 384)" in out
    assert "--stem.kernels" in out


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("lvit_s", "unknown model 'lvit_s'; did you mean lvvit_s, vit_s, lvvit_t?"),
        ("lvvit_s --width 100", "width must be divisible by heads; got width=100, heads=6"),
        (
            "lvvit_s --stem.kernels 3 3",
            "a conv stem needs as many kernels as strides, two at least (one is a linear stem); "
            "got kernels=(3, 3), strides=(2, 1, 1, 8)",
        ),
        ("lvvit_s --image-size 225 224", "image_size must be a multiple of the patch; got 225 x 224 with patch 16"),
        (
            "cait_s24 --class-token-at 0",
            "class attention needs a class token that joins after the trunk; got class_token_at=0, depth=24",
        ),
    ],
)
def test_a_mistake_in_the_config_is_one_sentence(capsys, line, sentence):
    assert main(["describe", *line.split()]) == 2
    assert capsys.readouterr() == ("", f"error: {sentence}\n")


@pytest.mark.parametrize(
    ("line", "hint"),
    [("lvvit_s --widht 96", "--width"), ("lvvit_s --width wide", "--width"), ("", "NAME")],
)
def test_a_mistyped_flag_ends_with_2_and_a_hint(capsys, line, hint):
    with pytest.raises(SystemExit) as end:
        main(["describe", *line.split()])
    assert end.value.code == 2
    assert hint in capsys.readouterr().err
