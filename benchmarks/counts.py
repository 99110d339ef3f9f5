"""Compares every count of parameters and FLOPs that the papers print with ours: `python benchmarks/counts.py`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from timing import environment, write_results

from alltokens.models.counts import count
from alltokens.models.published import PaperRow, agrees, all_rows
from alltokens.models.zoo import find


@dataclass(frozen=True)
class Comparison:
    """One printed count beside ours, both in the paper's unit."""

    row: PaperRow
    kind: str
    printed: Decimal
    computed: Decimal

    @property
    def difference(self) -> Decimal:
        """Ours above the printed one, in percent."""
        return 100 * (self.computed - self.printed) / self.printed

    @property
    def verdict(self) -> str:
        """`ok`, a known exception with its reason, or `WRONG`."""
        if agrees(self.printed, self.computed):
            return "ok"
        return f"exception: {self.row.reason}" if self.row.reason else "WRONG"


def comparisons() -> Iterator[Comparison]:
    """Every printed count of every row."""
    for row in all_rows():
        ours = count(find(row.name))
        if row.params is not None:
            yield Comparison(row, "parameters", row.params, Decimal(ours.parameters) / 10**6)
        if row.flops is not None:
            yield Comparison(row, "flops", row.flops, Decimal(ours.flops) / 10**9)


def main() -> int:
    """Print the comparison, write it, and fail on a count that is neither right nor explained."""
    compared = list(comparisons())
    print(f"{'model':36} {'where':16} {'count':10} {'printed':>8} {'ours':>9} {'difference':>10}  verdict")
    for one in compared:
        numbers = f"{one.printed:>8} {one.computed:>9.3f} {one.difference:>+9.2f}%"
        print(f"{one.row.name:36} {one.row.where:16} {one.kind:10} {numbers}  {one.verdict}")
    wrong = sum(one.verdict == "WRONG" for one in compared)
    explained = sum(one.verdict.startswith("exception") for one in compared)
    print(
        f"{len(compared)} printed counts: {len(compared) - wrong - explained} ok, {explained} exceptions, {wrong} wrong"
    )
    write(compared)
    return 1 if wrong else 0


def write(compared: list[Comparison]) -> None:
    """The comparison as JSON, with what it was made with."""
    rows = [
        {
            "model": one.row.name,
            "where": one.row.where,
            "count": one.kind,
            "printed": float(one.printed),
            "ours": float(round(one.computed, 6)),
            "verdict": one.verdict,
        }
        for one in compared
    ]
    units = {"parameters": "1e6", "flops": "1e9 multiply-adds"}
    write_results("counts", {**environment(), "units": units, "rows": rows})


if __name__ == "__main__":
    sys.exit(main())
