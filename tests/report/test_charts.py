"""Charts against the axes that they draw themselves, and against counts."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alltokens.report.charts import Bar, Series, axis_of_epochs, axis_over, bar_chart, heat_map, line_chart, percent

from .toy_pages import Parsed

HOSTILE = "<script>alert(1)</script>"


def points_of(chart: str) -> list[list[tuple[float, float]]]:
    """The points of each line, as drawn."""
    lines = re.findall(r'<polyline class="line c\d" points="([^"]*)"', chart)
    return [[tuple(map(float, point.split(","))) for point in drawn.split()] for drawn in lines]


def ticks_of(chart: str, anchor: str) -> list[tuple[float, float, str]]:
    """Place and words of each tick: those of the upright axis end at it, those of the other are centred."""
    found = re.findall(rf'<text class="tick" x="([\d.]+)" y="([\d.]+)" text-anchor="{anchor}">([^<]*)</text>', chart)
    return [(float(x), float(y), words) for x, y, words in found]


def between(value: float, one: tuple[float, float], other: tuple[float, float]) -> float:
    """The place of a value, by those of two others."""
    (first, at_first), (second, at_second) = one, other
    return at_first + (value - first) * (at_second - at_first) / (second - first)


def test_points_lie_where_the_ticks_say():
    x, y = [1, 2, 5, 40], [0.25, 3.5, 1.125, 2.0]
    chart = line_chart("loss", [Series("a", x, y), Series("b", [3, 30], [1.0, 1.75])])
    heights = [(float(words), place - 4) for _, place, words in ticks_of(chart, "end")]
    widths = [(float(words), place) for place, _, words in ticks_of(chart, "middle")]
    for drawn, (xs, ys) in zip(points_of(chart), [(x, y), ([3, 30], [1.0, 1.75])], strict=True):
        for (left, top), across, up in zip(drawn, xs, ys, strict=True):
            assert left == pytest.approx(between(across, widths[0], widths[-1]), abs=0.02)
            assert top == pytest.approx(between(up, heights[0], heights[-1]), abs=0.02)


def test_one_epoch_is_a_dot_in_the_middle():
    chart = line_chart("accuracy", [Series("top-1", [1], [0.5])], describe=percent)
    ((point,),) = points_of(chart)
    (tick,) = ticks_of(chart, "middle")
    assert tick[2] == "1"
    assert point[0] == tick[0]
    heights = [place for _, place, _ in ticks_of(chart, "end")]
    assert min(heights) < point[1] < max(heights)
    assert len(Parsed(chart).named("circle")) == 1


def test_many_epochs_are_a_line_with_its_end_marked():
    chart = line_chart("loss", [Series("a", range(1, 301), [1 / x for x in range(1, 301)])])
    (points,) = points_of(chart)
    assert len(points) == 300
    (dot,) = Parsed(chart).named("circle")
    assert (float(dot["cx"]), float(dot["cy"])) == points[-1]
    assert [words for _, _, words in ticks_of(chart, "middle")] == ["50", "100", "150", "200", "250", "300"]


def test_a_legend_names_each_line_and_where_it_ends():
    chart = line_chart("top-1", [Series("ours", [1, 2], [0.1, 0.625]), Series("theirs", [1], [0.5])], describe=percent)
    text = Parsed(chart).text
    assert "ours 62.5 %" in text
    assert "theirs 50 %" in text
    assert {found["class"] for found in Parsed(chart).named("i")} == {"key c0", "key c1"}


def test_an_axis_may_begin_at_zero():
    chart = line_chart("rate", [Series("rate", [1, 2], [5.0, 6.0])], from_zero=True)
    assert ticks_of(chart, "end")[0][2] == "0"


numbers = st.floats(-1e6, 1e6).map(lambda value: 0.0 if abs(value) < 1e-9 else value)


@given(st.lists(numbers, min_size=1, max_size=5))
def test_ticks_are_few_even_round_and_enclose_all_values(values):
    axis = axis_over(values, 0.0, 1.0)
    assert 2 <= len(axis.ticks) <= 8
    step = axis.ticks[1] - axis.ticks[0]
    assert axis.ticks[0] <= min(values) + 1e-8 * step
    assert axis.ticks[-1] >= max(values) - 1e-8 * step
    assert float(f"{step:.1e}".split("e")[0]) in (1, 2, 5)
    for one, other in zip(axis.ticks, axis.ticks[1:], strict=False):
        assert other - one == pytest.approx(step)


@given(st.integers(1, 2000), st.integers(0, 2000))
def test_ticks_of_epochs_are_whole_numbers_among_them(first, more):
    axis = axis_of_epochs([first, first + more], 0.0, 1.0)
    assert 1 <= len(axis.ticks) <= 10
    assert all(first <= tick <= first + more and tick == int(tick) for tick in axis.ticks)


def test_a_cell_is_as_strong_as_its_share_of_the_row():
    counts = [[6, 2, 0], [0, 5, 5], [0, 0, 0]]
    chart = heat_map("confusions", ["a", "b", "c"], counts)
    cells = [found for found in Parsed(chart).named("rect") if found["class"] != "floor"]
    for place, cell in enumerate(cells):
        row, column = divmod(place, 3)
        assert float(cell["fill-opacity"]) == pytest.approx(counts[row][column] / max(1, sum(counts[row])), abs=1e-3)
        assert cell["class"] == ("right" if row == column else "wrong")
    xs, ys = [float(cell["x"]) for cell in cells], [float(cell["y"]) for cell in cells]
    assert xs[0] == xs[3] == xs[6] < xs[1] == xs[4] < xs[2]
    assert ys[0] == ys[1] == ys[2] < ys[3] < ys[6]
    assert "a taken for b: 2 of 8" in chart


def test_long_names_are_shortened_and_still_there_to_point_at():
    chart = heat_map("confusions", ["a" * 60, "b"], [[1, 0], [0, 1]])
    assert f"<title>{'a' * 60}</title>{'a' * 17}…</text>" in chart


def test_a_bar_is_as_long_as_its_share():
    chart = bar_chart([Bar("cat", 0.375, "of 8"), Bar("dog", 1.0)])
    assert [found["style"] for found in Parsed(chart).named("i")] == ["width:37.50%", "width:100.00%"]
    assert "cat 37.5 % of 8" in Parsed(chart).text


@pytest.mark.parametrize(
    "chart",
    [
        line_chart(HOSTILE, [Series(HOSTILE, [1], [1.0])], x_label=HOSTILE),
        heat_map(HOSTILE, [HOSTILE, HOSTILE * 2], [[1, 2], [3, 4]]),
        bar_chart([Bar(HOSTILE, 0.5, HOSTILE)]),
    ],
)
def test_names_are_escaped(chart):
    assert "<script" not in chart
    assert HOSTILE in Parsed(chart).text
