"""What the papers print of the recipes: it is in their configs, and in the papers' texts at the lines cited."""

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from alltokens.plain import to_plain
from alltokens.recipes.names import RECIPES
from alltokens.recipes.recipe import TOP1, Printed, all_printed

PAPERS = Path(os.environ.get("ALLTOKENS_PAPERS", Path(__file__).parents[2] / ".." / "shared" / "papers"))
BEGINNINGS = {
    "TL": "All Tokens Matter: Token Labeling",
    "TL-supp": "# 1 Experiment Details",
    "TL-v1": "Token Labeling: Training an 85.4%",
    "CaiT": "Going deeper with Image Transformers",
    "3T": "Three things everyone should know",
}


def lines_of(paper: str) -> list[str]:
    for file in sorted(PAPERS.glob("*.txt")):
        text = file.read_text()
        if BEGINNINGS[paper] in text[:200]:
            return text.split("\n")
    pytest.skip(f"no text of {paper} under {PAPERS}; set ALLTOKENS_PAPERS to the folder of the papers' texts")


def value_in(plain: Any, field: str) -> Any:
    for key in field.split("."):
        plain = plain[int(key)] if isinstance(plain, list) else plain[key]
    return plain


def as_number(text: str) -> Any:
    # YAML takes 1e-05 for text, and `null` and lists for what they are.
    value = yaml.safe_load(text)
    return float(value) if isinstance(value, str) and re.fullmatch(r"[\d.]+e-\d+", value) else value


def is_near(printed: Printed, lines: list[str]) -> bool:
    near = "\n".join(lines[max(0, printed.line - 2) : printed.line + 1])
    return re.search(rf"(?<![\d.]){re.escape(printed.text)}(?!\d)", near) is not None


@pytest.mark.parametrize("paper", BEGINNINGS)
def test_configs_hold_what_the_papers_print(paper: str):
    plain = {name: to_plain(recipe.config) for name, recipe in RECIPES.items()}
    for printed in all_printed():
        if printed.where.split(",")[0] != paper:
            continue
        named = [name for name in RECIPES if fnmatchcase(name, printed.recipe)]
        assert named, f"{printed} is of no recipe"
        if printed.field == TOP1:
            assert named == [printed.recipe]
            continue
        for name in named:
            assert value_in(plain[name], printed.field) == as_number(printed.value), f"{name}: {printed}"


@pytest.mark.parametrize("paper", BEGINNINGS)
def test_the_papers_print_it_at_the_lines_that_are_cited(paper: str):
    lines = lines_of(paper)
    cited = [printed for printed in all_printed() if printed.where.split(",")[0] == paper]
    assert [printed for printed in cited if not is_near(printed, lines)] == []
    assert len(cited) > 10


def test_no_value_is_printed_twice():
    keys = [(printed.recipe, printed.field) for printed in all_printed()]
    assert len(set(keys)) == len(keys)


def test_a_docstring_cites_the_row_and_says_what_is_ours():
    assert RECIPES["tl_t6_lvvit_l_288_to_448"].__doc__ == (
        "lvvit_l_448, from the weights of tl_t6_lvvit_l_288: top-1 85.9 % (TL, Table 6, line 236); "
        "ours: the final learning rate"
    )
    assert RECIPES["cait_f3_depth_12_drop_0.1"].__doc__ == (
        "cait_t1_layerscale_12: its paper prints no accuracy; "
        "ours: this drop rate, as the figure's axis is not in the text"
    )


def test_every_row_of_a_table_has_an_accuracy_and_only_figures_and_m48_have_none():
    without = {name for name, recipe in RECIPES.items() if recipe.top1 is None}
    allowed = (
        r"(tl|cait|3t)_f\d_.*|lvvit_l_.*|lvvit_._(relabel|plain_labels)|cait_t3_m48.*|cait_t8_longer_training_distilled"
    )
    assert [name for name in without if not re.fullmatch(allowed, name)] == []
