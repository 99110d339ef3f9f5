"""`alltokens recipes`: every recipe by name, with its model, the labels it needs and the accuracy its paper prints."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

from tyro.conf import Positional

from alltokens.cli.flags import parse
from alltokens.cli.table import print_table
from alltokens.errors import UserError, did_you_mean
from alltokens.recipes.names import RECIPES, list_recipes
from alltokens.recipes.recipe import Recipe


@dataclass(frozen=True)
class Flags:
    """Every recipe by name, with its model, the labels it needs and the accuracy its paper prints.

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
    start: str | None
    """The recipe whose weights it begins with."""
    top1: float | None
    """As printed, in percent."""
    where: str | None
    line: int | None
    """Of the paper's text."""
    note: str


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
    top1 = recipe.top1
    return Entry(
        name=recipe.name,
        model=recipe.model,
        labels="classes" if recipe.config.data.labels is None else "store",
        start=recipe.start,
        top1=None if top1 is None else float(top1.value),
        where=None if top1 is None else top1.where,
        line=None if top1 is None else top1.line,
        note=recipe.note,
    )


def cells(line: Entry) -> list[str]:
    """An entry as text."""
    top1 = "" if line.top1 is None else f"{line.top1:.1f}"
    return [line.name, line.model, line.labels, top1, "" if line.where is None else f"{line.where}, line {line.line}"]
