"""The rows that the papers print about models of the zoo, as the papers print them (published.csv)."""

import csv
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One model in one table; a number is a Decimal, which keeps the digits printed, or None where none is printed."""

    name: str
    """Model in the zoo."""
    paper: str
    """TL, TL-v1, CaiT or 3T."""
    table: str
    """Table or appendix of that paper."""
    image_size: int
    """Side of the test image in pixels."""
    top1: Decimal | None
    """Accuracy on ImageNet's validation set in percent."""
    params: Decimal | None
    """Parameters in millions."""
    flops: Decimal | None
    """Multiply-adds in 1e9."""
    note: str
    """What else the row says of its training or evaluation."""
    reason: str
    """Why the printed parameters or FLOPs cannot come out; empty where they do."""

    @property
    def where(self) -> str:
        """Paper and table, to cite."""
        return f"{self.paper}, {self.table}"

    @property
    def distilled(self) -> bool:
        """Whether a teacher took part in the training."""
        return self.note.startswith("distilled")


def agrees(printed: Decimal, computed: Decimal) -> bool:
    """Equal after rounding to the printed digits, or within 2 %."""
    return computed.quantize(printed) == printed or abs(computed - printed) <= printed * Decimal("0.02")


@cache
def all_rows() -> tuple[PaperRow, ...]:
    """Every row of the file; the tables that introduce a family come first."""

    def number(text: str) -> Decimal | None:
        return Decimal(text) if text else None

    with files("alltokens.models").joinpath("published.csv").open(encoding="utf-8") as file:
        return tuple(
            PaperRow(
                name=line["name"],
                paper=line["paper"],
                table=line["table"],
                image_size=int(line["image_size"]),
                top1=number(line["top1"]),
                params=number(line["params"]),
                flops=number(line["flops"]),
                note=line["note"],
                reason=line["reason"],
            )
            for line in csv.DictReader(file)
        )


def rows(name: str) -> list[PaperRow]:
    """What the papers print of one model."""
    return [row for row in all_rows() if row.name == name]


def headline(name: str) -> PaperRow | None:
    """The first row with an accuracy, without a teacher where there is such a one."""
    scored = [row for row in rows(name) if row.top1 is not None]
    return min(scored, key=lambda row: row.distilled, default=None)
