"""How a trained model is used: what a weight file says of it comes back, and nothing that cannot be right."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from alltokens.errors import UserError
from alltokens.models.usage import Usage
from alltokens.models.weights import CONFIG_KEY, Inside, read_weights, save_model
from alltokens.plain import to_plain

from ..kinds import TINY, lively

PAIR = replace(TINY, classes=2)
USAGE = Usage(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), crop=0.8, interpolation="bilinear", classes=("cat", "dog"))


def test_a_file_says_how_its_model_is_used(tmp_path: Path) -> None:
    save_model(lively(PAIR), tmp_path / "model.safetensors", USAGE)
    file = read_weights(tmp_path / "model.safetensors")
    assert (file.config, file.usage) == (PAIR, USAGE)


def test_a_file_may_not_say_how_its_model_is_used(tmp_path: Path) -> None:
    model, path = lively(PAIR), tmp_path / "model.safetensors"
    save_model(model, path)
    assert read_weights(path).usage is None
    before = {"model": to_plain(Inside(PAIR))["model"]}
    save_file(model.state_dict(), path, {CONFIG_KEY: json.dumps(before)})
    assert (read_weights(path).config, read_weights(path).usage) == (PAIR, None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mean": [0.5, 0.5]}, "usage.mean must be a list of 3; got [0.5, 0.5]"),
        ({"mean": [0.5, 0.5, float("nan")]}, "mean must be three numbers from -1000 to 1000; got mean=(0.5, 0.5, nan)"),
        ({"mean": [0.5, 0.5, "0.5"]}, "usage.mean[2] must be a number; got '0.5'"),
        ({"mean": [0.5, 0.5, 10**400]}, "int too large to convert to float"),
        ({"std": [0.5, 0.5, 0]}, "std must be three numbers from 0.001 to 1000; got std=(0.5, 0.5, 0.0)"),
        ({"std": [0.5, 0.5, float("inf")]}, "std must be three numbers from 0.001 to 1000; got std=(0.5, 0.5, inf)"),
        ({"crop": -1}, "crop must be from 0.001 to 1; got crop=-1.0"),
        ({"interpolation": "best"}, "usage.interpolation must be one of bilinear, bicubic; got 'best'"),
        ({"classes": ["cat", 2]}, "usage.classes[1] must be text; got 2"),
        ({"classes": "cd"}, "usage.classes must be a list; got 'cd'"),
        ({"classes": ["cat"]}, "usage.classes must name each of the model's 2 classes; got 1 names"),
        ({"shear": 1}, "unknown key 'usage.shear'"),
    ],
)
def test_what_cannot_be_right_is_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    inside = to_plain(Inside(PAIR, USAGE))
    inside["usage"] |= changes
    save_file(lively(PAIR).state_dict(), path, {CONFIG_KEY: json.dumps(inside)})
    expected = f"'{path}' has a config inside that is not one of ours: {sentence}"
    with pytest.raises(UserError, match=f"^{re.escape(expected)}"):
        read_weights(path)
