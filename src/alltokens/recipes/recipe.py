"""What a recipe is: a whole config but for what is the user's own, and where each of its values stands."""

import csv
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from alltokens.train.config import DataConfig, TrainConfig

NOT_GIVEN = ""
"""Stands in a recipe for what is the user's own: images, a label store, weights to begin with."""
CLASS_FOLDERS = DataConfig(root=NOT_GIVEN)
WITH_LABELS = DataConfig(root=NOT_GIVEN, labels=NOT_GIVEN)

TOP1, ROW, COST, NOTE = "top1", "row", "cost", "note"
"""Fields of the lines that are about no field of a config: the accuracy on ImageNet's validation set in percent of a
recipe, and of those that are the same training; the place that a recipe is of, where that is not the accuracy's; the
machines and time that it took its authors; what else is to be said of it."""
RELEASED, TIMM, OURS = "released", "timm", "ours"
"""Sources besides the papers: what their authors published as code, timm's defaults, and ourselves."""


@dataclass(frozen=True)
class Printed:
    """A value of some recipes, and where it stands: a line of published_*.csv."""

    recipes: str
    """Patterns of names with spaces between, those after a ! to leave out again."""
    field: str
    """Dotted field of the config; start, annotator, top1, row, cost or note."""
    value: str
    """As the config holds it."""
    text: str
    """As the paper's text has it; of a value that stands in another paper, the words that cite that one."""
    where: str
    """Paper and table, or section; released, timm or ours for what no paper prints."""
    line: int | None
    """Of the paper's text, from 1."""

    @property
    def place(self) -> str:
        """To cite it by."""
        return f"{self.where}, line {self.line}"

    def is_of(self, name: str) -> bool:
        """Whether the line is about the recipe of that name."""
        patterns = self.recipes.split()
        if any(fnmatchcase(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
            return False
        return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One row of a paper's table; its docstring cites the row, and says what no paper does."""

    name: str
    model: str
    """The zoo's name, or timm/NAME."""
    config: TrainConfig
    """With nothing in place of what is the user's own."""
    start: str | None = None
    """The recipe whose best weights this one begins with (--initial)."""
    annotator: str = "nfnet_f6"
    """Who made the label store, if there is one: 'alltokens annotate IMAGES STORE --annotator NAME'."""
    note: str = ""
    """What is to be said besides."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.sentence())

    def __call__(self, data: DataConfig) -> TrainConfig:
        """The recipe on the user's data."""
        return replace(self.config, data=data)

    @property
    def cited(self) -> Printed | None:
        """The accuracy that the paper prints or, if it prints none, the place that the recipe is of."""
        return accuracies().get(self.name) or next(iter(self.rows()), None)

    def rows(self) -> list[Printed]:
        """The tables and figures that it is of, but for the one that prints its accuracy."""
        return [printed for printed in lines_about(ROW) if printed.is_of(self.name)]

    def remarks(self, field: str) -> list[str]:
        """What there is to be said of it, its cost or a note, and where."""
        said = [printed for printed in lines_about(field) if printed.is_of(self.name)]
        return [printed.value if printed.line is None else f"{printed.value} ({printed.place})" for printed in said]

    @property
    def has_labels(self) -> bool:
        """Whether it trains on a label store."""
        return self.config.data.labels is not None

    def fields_from(self, source: str) -> list[str]:
        """Fields of the config whose values no paper prints, by who gives them."""
        return [printed.field for printed in lines_from(source) if printed.is_of(self.name)]

    def sentence(self) -> str:
        """What is trained, where the row stands, what to expect, and what is not the paper's own."""
        parts = [
            f"{self.model}, from the weights of {self.start}" if self.start else self.model,
            self.expectation(),
            f"labels of {self.annotator}" if self.has_labels else "",
            *self.remarks(COST),
            *self.remarks(NOTE),
            self.note,
        ]
        for source, words in ((RELEASED, "as released"), (TIMM, "timm's"), (OURS, "ours")):
            fields = self.fields_from(source)
            parts.append(f"{words}: {', '.join(fields)}" if fields else "")
        return "; ".join(part for part in parts if part)

    def expectation(self) -> str:
        """The accuracy to expect, and where it stands."""
        if self.cited is None:
            return "not a row itself"
        if self.cited.field == ROW:
            return f"no accuracy printed ({self.cited.place})"
        return "; also ".join([f"top-1 {self.cited.value} % ({self.cited.place})", *[row.place for row in self.rows()]])


@cache
def all_printed() -> tuple[Printed, ...]:
    """Every line of the papers' files."""
    tables = sorted(path.name for path in files("alltokens.recipes").iterdir() if path.name.endswith(".csv"))
    lines: list[Printed] = []
    for name in tables:
        with files("alltokens.recipes").joinpath(name).open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                line = int(row["line"]) if row["line"] else None
                text = row["text"] or row["value"]
                lines.append(Printed(row["recipes"], row["field"], row["value"], text, row["where"], line))
    return tuple(lines)


@cache
def lines_about(field: str) -> tuple[Printed, ...]:
    """Those of one field."""
    return tuple(printed for printed in all_printed() if printed.field == field)


@cache
def lines_from(source: str) -> tuple[Printed, ...]:
    """Those of fields whose values no paper prints."""
    return tuple(printed for printed in all_printed() if printed.where == source and printed.field != NOTE)


@cache
def accuracies() -> dict[str, Printed]:
    """The accuracy of each recipe that has one."""
    return {name: printed for printed in lines_about(TOP1) for name in printed.recipes.split()}
