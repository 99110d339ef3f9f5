"""The papers' rows: each names a model, agrees with our counts, and is printed in the paper's text."""

import os
import re
from decimal import Decimal
from pathlib import Path

import pytest

from alltokens.models.counts import count
from alltokens.models.published import PaperRow, agrees, all_rows, headline, rows
from alltokens.models.zoo import MODELS, find

PAPERS = Path(os.environ.get("ALLTOKENS_PAPERS", Path(__file__).parents[2] / ".." / "shared" / "papers"))
TITLES = {
    "TL": "All Tokens Matter: Token Labeling",
    "TL-v1": "Token Labeling: Training an 85.4%",
    "CaiT": "Going deeper with Image Transformers",
    "3T": "Three things everyone should know",
}


def paper_text(paper: str) -> str:
    for file in sorted(PAPERS.glob("*.txt")):
        text = file.read_text()
        if TITLES[paper] in text[:200]:
            return text
    pytest.skip(f"no text of {paper} under {PAPERS}; set ALLTOKENS_PAPERS to the folder of the papers' texts")


def printed_numbers(row: PaperRow) -> list[str]:
    return [str(number) for number in (row.top1, row.params, row.flops) if number is not None]


def computed(row: PaperRow) -> list[tuple[Decimal, Decimal]]:
    ours = count(find(row.name))
    pairs = [(row.params, Decimal(ours.parameters) / 10**6), (row.flops, Decimal(ours.flops) / 10**9)]
    return [(printed, value) for printed, value in pairs if printed is not None]


def test_every_row_names_a_model_of_its_image_size() -> None:
    for row in all_rows():
        assert row.name in MODELS
        assert find(row.name).image_size == (row.image_size, row.image_size)


def test_no_row_stands_twice() -> None:
    assert len(set(all_rows())) == len(all_rows())


def test_every_printed_count_agrees_or_says_why_not() -> None:
    disagreeing = {row for row in all_rows() if not all(agrees(*pair) for pair in computed(row))}
    assert disagreeing == {row for row in all_rows() if row.reason}


@pytest.mark.parametrize("paper", TITLES)
def test_the_numbers_of_a_row_stand_together_in_the_papers_text(paper: str) -> None:
    # Tables came out of the PDF with rows merged or split at places, so a row may spread over three lines.
    lines = paper_text(paper).splitlines()
    windows = [set(re.findall(r"\d+(?:\.\d+)?", " ".join(lines[i : i + 3]))) for i in range(len(lines))]
    for row in all_rows():
        if row.paper == paper:
            assert any(window.issuperset(printed_numbers(row)) for window in windows), row


def test_every_ablation_row_is_printed_somewhere() -> None:
    ablations = {name for name in MODELS if name.startswith(("tlv1_", "cait_t", "cait_a_", "cait_b_"))}
    assert ablations <= {row.name for row in all_rows()}


def test_a_headline_prefers_the_training_without_a_teacher() -> None:
    row = headline("cait_s36_384")
    assert row is not None
    assert (row.top1, row.where, row.distilled) == (Decimal("85.0"), "CaiT, Table 3", False)
    distilled = headline("cait_m48_448")
    assert distilled is not None
    assert (distilled.top1, distilled.where, distilled.distilled) == (Decimal("86.5"), "CaiT, Table 5", True)


def test_a_model_without_a_printed_accuracy_has_no_headline() -> None:
    assert headline("lvvit_t_512") is None
    assert headline("vit_s_48x1") is None
    assert [row.where for row in rows("vit_s_48x1")] == ["3T, Table 3"]


@pytest.mark.parametrize(
    ("printed", "value", "expected"),
    [
        ("1.3", "1.254", True),  # 3.6 % off, but rounds to it
        ("1.3", "1.249", False),
        ("86", "86.9", True),  # rounds to 87, but within 2 %
        ("22", "22.44", True),
        ("22", "22.6", False),
        ("17.58", "17.2", False),
    ],
)
def test_a_count_agrees_when_it_rounds_to_the_printed_one_or_is_within_two_percent(
    printed: str, value: str, expected: bool
) -> None:
    assert agrees(Decimal(printed), Decimal(value)) is expected
