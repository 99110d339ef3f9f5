"""What a recipe is: a whole config but for what is the user's own, and what the paper prints of it."""

import csv
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from alltokens.train.config import DataConfig, TrainConfig

NOT_GIVEN = ""
"""Stands in a recipe for what is the user's own: images, a label store, weights to begin with."""
CLASS_FOLDERS = DataConfig(root=NOT_GIVEN)
WITH_LABELS = DataConfig(root=NOT_GIVEN, labels=NOT_GIVEN)

TOP1 = "top1"
"""The field of the published values that is no field of a config: accuracy on ImageNet's validation set in percent."""


@dataclass(frozen=True)
class Printed:
    """A value that a paper prints of a recipe, or of all that a pattern names (published_*.csv)."""

    recipe: str
    """Name or pattern."""
    field: str
    """Dotted field of the config, or top1."""
    value: str
    """As the config holds it."""
    text: str
    """As the paper's text has it."""
    where: str
    """Paper and table, or section."""
    line: int
    """Of the paper's text, from 1."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One row of a paper's table; its docstring cites the row."""

    name: str
    model: str
    """The zoo's name, or timm/NAME."""
    config: TrainConfig
    """With nothing in place of what is the user's own."""
    start: str | None = None
    """The recipe whose best weights this one begins with (--initial)."""
    note: str = ""
    """What the config does not say: whose labels, and what is ours and in no paper."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.sentence())

    def __call__(self, data: DataConfig) -> TrainConfig:
        """The recipe on the user's data."""
        return replace(self.config, data=data)

    @property
    def top1(self) -> Printed | None:
        """The accuracy that the paper prints."""
        return accuracies().get(self.name)

    def sentence(self) -> str:
        """What is trained, where the row stands, and what to expect."""
        top1 = self.top1
        cited = "its paper prints no accuracy"
        if top1 is not None:
            cited = f"top-1 {top1.value} % ({top1.where}, line {top1.line})"
        begins = f", from the weights of {self.start}" if self.start else ""
        return f"{self.model}{begins}: {cited}" + (f"; {self.note}" if self.note else "")


@cache
def all_printed() -> tuple[Printed, ...]:
    """Every line of the papers' files."""
    tables = sorted(path.name for path in files("alltokens.recipes").iterdir() if path.name.endswith(".csv"))
    lines: list[Printed] = []
    for name in tables:
        with files("alltokens.recipes").joinpath(name).open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                text = row["text"] or row["value"]
                lines.append(Printed(row["recipe"], row["field"], row["value"], text, row["where"], int(row["line"])))
    return tuple(lines)


@cache
def accuracies() -> dict[str, Printed]:
    """The accuracy of each recipe that has one."""
    return {printed.recipe: printed for printed in all_printed() if printed.field == TOP1}
