"""`alltokens models`: every model by name, with its cost and the accuracy its paper prints."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

from tyro.conf import Positional

from alltokens.cli.flags import parse
from alltokens.cli.table import print_table
from alltokens.errors import UserError, did_you_mean
from alltokens.models.counts import count
from alltokens.models.published import headline
from alltokens.models.zoo import MODELS, find, list_models


@dataclass(frozen=True)
class Flags:
    """Every model by name, with its cost and the accuracy its paper prints."""

    glob: Positional[str] = "*"
    """Names to list, such as 'lvvit*'."""
    format: Literal["table", "json"] = "table"
    """For people, or for programs."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the list."""

    name: str
    parameters: int
    flops: int
    """Multiply-adds for one image, as the papers count."""
    grid: tuple[int, int]
    image_size: tuple[int, int]
    top1: float | None
    """As printed, in percent; no model here was trained to measure it."""
    where: str | None


def run(arguments: list[str]) -> None:
    """Print the list."""
    flags = parse(Flags, arguments, "alltokens models")
    names = list_models(flags.glob)
    if not names:
        raise UserError(f"no model matches '{flags.glob}'{did_you_mean(flags.glob, MODELS)}")
    entries = [entry(name) for name in names]
    if flags.format == "json":
        print(json.dumps([asdict(line) for line in entries], indent=1))
    else:
        columns = ["model", "params (M)", "GFLOPs", "tokens", "image", "top-1 (%)", "printed in"]
        print_table(columns, [cells(line) for line in entries], left=["model", "printed in"])


def entry(name: str) -> Entry:
    """What the list says of one model."""
    config = find(name)
    costs, row = count(config), headline(name)
    return Entry(
        name=name,
        parameters=costs.parameters,
        flops=costs.flops,
        grid=config.grid,
        image_size=config.image_size,
        top1=None if row is None or row.top1 is None else float(row.top1),
        where=None if row is None else row.where,
    )


def cells(line: Entry) -> list[str]:
    """An entry as text."""
    return [
        line.name,
        f"{line.parameters / 1e6:.1f}",
        f"{line.flops / 1e9:.1f}",
        "{} x {}".format(*line.grid),
        "{} x {}".format(*line.image_size),
        "" if line.top1 is None else f"{line.top1:.1f}",
        line.where or "",
    ]
