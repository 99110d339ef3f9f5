"""Where a recipe's values stand: they are in its config, and in the papers' texts at the lines cited."""

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import groupby, permutations
from pathlib import Path
from typing import Any

import pytest
import yaml

from alltokens.plain import to_plain
from alltokens.recipes.names import RECIPES
from alltokens.recipes.recipe import COST, NOTE, OURS, RELEASED, ROW, TIMM, TOP1, Printed, all_printed

PAPERS = Path(os.environ.get("ALLTOKENS_PAPERS", Path(__file__).parents[2] / ".." / "shared" / "papers"))
BEGINNINGS = {
    "TL": "All Tokens Matter: Token Labeling",
    "TL-supp": "# 1 Experiment Details",
    "TL-v1": "Token Labeling: Training an 85.4%",
    "CaiT": "Going deeper with Image Transformers",
    "3T": "Three things everyone should know",
}
NO_PAPER = (RELEASED, TIMM, OURS)
THE_USERS = ("data.", "initial", "start", "accumulate")
"""What needs no source: the user's own, and what changes nothing."""
THE_ZOOS = "model."
"""Fields whose source the model's name is; tests of the zoo compare them with the papers."""
BUT_FOR = ("model.drop_path", "model.image_size")


def paper_of(printed: Printed) -> str:
    return printed.where.split(",")[0]


def lines_of(paper: str) -> list[str]:
    for file in sorted(PAPERS.glob("*.txt")):
        text = file.read_text()
        if BEGINNINGS[paper] in text[:200]:
            return text.split("\n")
    pytest.skip(f"no text of {paper} under {PAPERS}; set ALLTOKENS_PAPERS to the folder of the papers' texts")


@cache
def plain_recipe(name: str) -> dict[str, Any]:
    recipe = RECIPES[name]
    annotator = recipe.annotator if recipe.has_labels else None
    return {**to_plain(recipe.config), "start": recipe.start, "annotator": annotator}


def value_in(plain: Any, field: str) -> Any:
    for key in field.split("."):
        plain = plain[int(key)] if isinstance(plain, list) else plain[key]
    return plain


def leaves(plain: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{before}{key}.")
        else:
            yield before + key, value


def as_number(text: str) -> Any:
    # YAML takes 1e-05 for text, and `null` and lists for what they are.
    value = yaml.safe_load(text)
    return float(value) if isinstance(value, str) and re.fullmatch(r"[\d.]+e-\d+", value) else value


def place_in(line: str, text: str, start: int = 0) -> int | None:
    """Where the text ends, if it stands in the line by itself: 3.3 does not stand in 83.3."""
    found = re.compile(rf"(?<![\d.]){re.escape(text)}(?!\d)").search(line, start)
    return None if found is None else found.end()


@cache
def sources_of(name: str) -> dict[str, list[Printed]]:
    """The lines about each field of a recipe."""
    sources: dict[str, list[Printed]] = {}
    for printed in all_printed():
        if printed.is_of(name):
            sources.setdefault(printed.field.removesuffix(".0"), []).append(printed)
    return sources


@pytest.mark.parametrize("paper", [*BEGINNINGS, *NO_PAPER])
def test_configs_hold_what_is_written_of_them(paper: str):
    for printed in all_printed():
        if paper_of(printed) != paper:
            continue
        for pattern in printed.recipes.split():
            assert any(fnmatchcase(name, pattern.removeprefix("!")) for name in RECIPES), f"{pattern}: {printed}"
        for name in RECIPES:
            if printed.is_of(name) and printed.field not in (TOP1, ROW, COST, NOTE):
                assert value_in(plain_recipe(name), printed.field) == as_number(printed.value), f"{name}: {printed}"


def test_every_value_of_a_recipe_has_a_source():
    for name in RECIPES:
        sources = sources_of(name)
        for field, value in leaves(plain_recipe(name)):
            if value is None or field.startswith(THE_USERS):
                continue
            if field.startswith(THE_ZOOS) and field not in BUT_FOR:
                continue
            assert field in sources, f"{name}: nothing says where {field}={value} stands"


def test_what_a_paper_prints_is_neither_ours_nor_somebody_elses():
    for name in RECIPES:
        for field, sources in sources_of(name).items():
            if field == NOTE:
                continue
            kinds = {printed.where if printed.where in NO_PAPER else "paper" for printed in sources}
            assert len(kinds) == 1, f"{name}: {field} stands in {kinds}"


@pytest.mark.parametrize("paper", BEGINNINGS)
def test_the_papers_print_it_at_the_lines_that_are_cited(paper: str):
    lines = lines_of(paper)
    cited = [printed for printed in all_printed() if paper_of(printed) == paper]
    assert [printed for printed in cited if place_in(lines[printed.line - 1], printed.text) is None] == []
    assert len(cited) > 10


@pytest.mark.parametrize("paper", BEGINNINGS)
def test_the_numbers_of_a_line_of_a_table_stand_in_the_order_of_its_columns(paper: str):
    """So that a number cannot stand for that of another column."""
    lines = lines_of(paper)
    cells = [
        printed
        for printed in all_printed()
        if paper_of(printed) == paper
        and re.search(r"\d", printed.text)
        and ("Table" in printed.where or printed.field == TOP1)
        and printed.field != NOTE
    ]
    for number, row in groupby(sorted(cells, key=lambda cell: cell.line), key=lambda cell: cell.line):
        place: int | None = 0
        for cell in row:
            # A text may begin with the character that the one before ends with.
            place = place_in(lines[number - 1], cell.text, max(0, place - 1))
            assert place is not None, f"{cell} does not stand after what is cited before it"


def test_no_value_is_printed_twice():
    keys = [(printed.recipes, printed.field, printed.where) for printed in all_printed()]
    assert len(set(keys)) == len(keys)


def test_an_accuracy_is_as_printed_and_of_one_training():
    for printed in all_printed():
        if printed.field == TOP1:
            assert printed.text.endswith(printed.value)
            names = printed.recipes.split()
            assert {name for name in RECIPES if printed.is_of(name)} == {*names}
            assert [name for name in names if plain_recipe(name) != plain_recipe(names[0])] == []


def test_no_recipe_lacks_an_accuracy_that_is_printed_of_the_same_training():
    with_one = [name for name, recipe in RECIPES.items() if recipe.cited.field == TOP1]
    for name in RECIPES.keys() - {*with_one}:
        assert [other for other in with_one if plain_recipe(other) == plain_recipe(name)] == [], name


def test_all_recipes_have_a_place_in_a_paper():
    assert [name for name, recipe in RECIPES.items() if recipe.cited is None] == []


def test_every_row_of_a_table_has_an_accuracy_and_only_figures_columns_and_m48_have_none():
    without = {name for name, recipe in RECIPES.items() if recipe.cited.field == ROW}
    allowed = r"(tl|cait|3t)_f\d_.*|lvvit_._(relabel|plain_labels)|cait_t3_m48.*"
    assert [name for name in without if not re.fullmatch(allowed, name)] == []


OF_TIMM = (
    "timm's: augment.scale, augment.ratio, augment.hflip, augment.vflip, augment.color_jitter, augment.mean, "
    "objective.finish.mean, objective.finish.std, objective.mix.alpha, objective.mix.probability, "
    "evaluation.interpolation, schedule.cooldown_epochs"
)


def test_a_docstring_cites_the_row_and_says_what_no_paper_does():
    assert RECIPES["tl_t6_lvvit_l_288_to_448"].__doc__ == (
        "lvvit_l_448, from the weights of tl_t6_lvvit_l_288; top-1 85.9 % (TL, Table 6, line 236); labels of nfnet_f6; "
        "32 V100 of 32 GB (TL-supp, section 1, line 5); "
        "released with the score map as the image's target (objective.image_target); "
        "as released: model.drop_path, augment.policy, objective.smoothing, objective.rule, model.token_weight, "
        "augment.interpolation, evaluation.crop, schedule.warmup_rate, average.decay, average.reference_batch, "
        f"average.warmup, repeats; {OF_TIMM}; ours: seed, schedule.final_rate, precision"
    )
    assert RECIPES["3t_f3_vit_s_24x1_300"].__doc__ == (
        "vit_s_24x1; no accuracy printed (3T, Figure 3, line 143); "
        "the numbers of blocks are ours, as the figure's axis is not in the text; "
        f"{OF_TIMM}; ours: augment.interpolation, schedule.warmup_rate, schedule.final_rate, precision"
    )
    assert RECIPES["cait_t8_depth_36"].__doc__.startswith(
        "cait_t8_depth_36; top-1 69.9 % (CaiT, Table 8, line 339); their training failed (CaiT, Table 8, line 339); "
    )


def test_a_docstring_cites_the_figure_beside_the_table_that_prints_the_accuracy():
    assert RECIPES["tl_f5_deit_s_plain_labels"].__doc__.startswith(
        "deit_s; top-1 79.9 % (TL, Table 4, line 171); also TL, Figure 5, line 184; "
    )


def test_two_accuracies_that_are_printed_of_one_training_are_both_said():
    names = {name: plain_recipe(name) for name, recipe in RECIPES.items() if recipe.cited.field == TOP1}
    pairs = [(one, other) for one, other in permutations(names, 2) if names[one] == names[other]]
    for one, other in pairs:
        told, second = (f"{float(RECIPES[name].cited.value):.1f}" for name in (one, other))
        assert told == second or f"{second} % elsewhere" in RECIPES[one].__doc__, (one, other)
    assert len(pairs) > 10


def test_machines_are_cited_where_the_paper_speaks_of_them():
    # TL-supp says what fine-tuning L at 448 pixels takes, nothing of training it there or of 512.
    sizes = [name for name in RECIPES if name.startswith("tl_t6_lvvit_l")]
    assert {name: [cost.value for cost in sources_of(name).get(COST, [])] for name in sizes} == {
        "tl_t6_lvvit_l_288": ["8 V100 of 32 GB"],
        "tl_t6_lvvit_l_288_to_448": ["32 V100 of 32 GB"],
        "tl_t6_lvvit_l_448": [],
        "tl_t6_lvvit_l_448_to_512": [],
    }


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [("a_*", ["a_1", "a_2"]), ("a_* b_1", ["a_1", "a_2", "b_1"]), ("* !a_*", ["b_1"]), ("!a_1 a_*", ["a_2"])],
)
def test_patterns_name_recipes_and_leave_some_out_again(patterns: str, expected: list[str]):
    printed = Printed(patterns, "batch", "1", "1", OURS, None)
    assert [name for name in ("a_1", "a_2", "b_1") if printed.is_of(name)] == expected
