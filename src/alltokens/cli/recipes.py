"""`alltokens recipes`: every recipe by name, with its model, the labels it needs and what its paper prints of it."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

from tyro.conf import Positional

from alltokens.cli.flags import parse
from alltokens.cli.table import print_table
from alltokens.errors import UserError, did_you_mean
from alltokens.recipes.names import RECIPES, list_recipes
from alltokens.recipes.recipe import COST, NOTE, OURS, RELEASED, TIMM, TOP1, Recipe


@dataclass(frozen=True)
class Flags:
    """Every recipe by name, with its model, the labels it needs and what its paper prints of it.

    'alltokens train RECIPE --dry-run' prints all of one.
    """

    glob: Positional[str] = "*"
    """Names to list, such as 'tl_t6*'."""
    format: Literal["table", "json"] = "table"
    """For people, or for programs; the latter has all that there is to say of each."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the list."""

    name: str
    model: str
    labels: Literal["classes", "store"]
    """What it trains on: the data set's own classes, or a label store besides."""
    annotator: str | None
    """Who made the label store."""
    start: str | None
    """The recipe whose weights it begins with."""
    top1: float | None
    """As printed, in percent."""
    where: str
    """The paper, and its table, figure or section."""
    line: int | None
    """Of the paper's text."""
    also: list[str]
    """Other tables and figures that it is of."""
    cost: list[str]
    """The machines and time that it took its authors, as far as they say so, and where that stands."""
    note: str
    released: list[str]
    """Fields of its config whose values no paper prints, but what its authors published."""
    timm: list[str]
    """The same, but timm's defaults."""
    ours: list[str]
    """Fields of its config whose values nobody else gives."""


def run(arguments: list[str]) -> None:
    """Print the list."""
    flags = parse(Flags, arguments, "alltokens recipes")
    entries = [entry(recipe) for recipe in list_recipes(flags.glob)]
    if not entries:
        raise UserError(f"no recipe matches '{flags.glob}'{did_you_mean(flags.glob, RECIPES)}")
    if flags.format == "json":
        print(json.dumps([asdict(line) for line in entries], indent=1))
    else:
        columns = ["recipe", "model", "labels", "top-1 (%)", "printed in"]
        print_table(columns, [cells(line) for line in entries], left=["recipe", "model", "labels", "printed in"])


def entry(recipe: Recipe) -> Entry:
    """What the list says of one recipe."""
    cited = recipe.cited
    assert cited is not None, f"{recipe.name} is of no place in a paper"
    return Entry(
        name=recipe.name,
        model=recipe.model,
        labels="store" if recipe.has_labels else "classes",
        annotator=recipe.annotator if recipe.has_labels else None,
        start=recipe.start,
        top1=float(cited.value) if cited.field == TOP1 else None,
        where=cited.where,
        line=cited.line,
        also=[row.place for row in recipe.rows() if row is not cited],
        cost=recipe.remarks(COST),
        note="; ".join([*recipe.remarks(NOTE), *filter(None, [recipe.note])]),
        released=recipe.fields_from(RELEASED),
        timm=recipe.fields_from(TIMM),
        ours=recipe.fields_from(OURS),
    )


def cells(line: Entry) -> list[str]:
    """An entry as text."""
    # One decimal, or two where the paper prints two.
    top1 = "" if line.top1 is None else f"{line.top1:.2f}".removesuffix("0")
    return [line.name, line.model, line.labels, top1, f"{line.where}, line {line.line}"]
