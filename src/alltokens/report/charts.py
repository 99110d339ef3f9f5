"""Charts as markup that needs nothing else: lines, bars and heat maps, in the colours of the page around them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from markupsafe import Markup

WIDTH, HEIGHT = 420.0, 240.0
"""Of a line chart, in its own units: so few that a phone's screen still shows its letters large enough."""
LEFT, RIGHT, TOP, BOTTOM = 56.0, 10.0, 10.0, 36.0
"""Around the lines."""
MOST_TICKS, MOST_EPOCHS = 6, 9
"""That are marked on the axes."""
MOST_DOTS = 40
"""Points of a line that are marked one by one."""
COLOURS = 6
"""That the page has for lines."""
SMALLEST_CELL, LARGEST_CELL, SPREAD, LETTER = 24.0, 56.0, 330.0, 6.4
"""Sides of a heat map's cells, that of all of them together where they may have it, and a letter's usual width."""
LONGEST_NAME = 18
NUMBERED = 16
"""Classes up to which the cells of a heat map say their numbers."""

Number = int | float
Describe = Callable[[Number], str]


def number(value: Number) -> str:
    """With four digits."""
    return f"{value:.4g}"


def percent(share: Number) -> str:
    """`71.26 %`, never on two lines."""
    return f"{100 * share:.4g}\N{NO-BREAK SPACE}%"


@dataclass(frozen=True)
class Series:
    """A line with a name."""

    name: str
    x: Sequence[Number]
    y: Sequence[Number]

    def __post_init__(self) -> None:
        assert len(self.x) == len(self.y) > 0, f"{self.name} has {len(self.x)} x and {len(self.y)} y"


@dataclass(frozen=True)
class Axis:
    """Numbers from `low` to `high` on the way from one place of the drawing to another."""

    low: Number
    high: Number
    start: float
    end: float
    ticks: Sequence[float]

    def place(self, value: Number) -> float:
        """Where a number lies."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def nice_step(low: Number, high: Number, most: int) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that leaves about as many ticks as there may be at the most."""
    rough = (high - low) / (most - 1)
    power = 10.0 ** floor(log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def axis_over(values: Sequence[Number], start: float, end: float) -> Axis:
    """From a tick at or below all of the values to one at or above them."""
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        around = abs(low) / 10 or 1.0
        low, high = low - around, high + around
    step = nice_step(low, high, MOST_TICKS)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    ticks = [place * step for place in range(first, last + 1)]
    return Axis(ticks[0], ticks[-1], start, end, ticks)


def axis_of_epochs(values: Sequence[Number], start: float, end: float) -> Axis:
    """From the first value to the last, ticks at whole numbers in between."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    step = max(1.0, nice_step(low, high, MOST_EPOCHS))
    ticks = [place * step for place in range(ceil(low / step), floor(high / step) + 1)]
    return Axis(low, high, start, end, ticks)


def line_chart(
    title: str, series: Sequence[Series], x_label: str = "epoch", describe: Describe = number, from_zero: bool = False
) -> Markup:
    """Lines over a common axis, with a legend that says where each of them ends."""
    assert 0 < len(series) <= COLOURS, f"there are colours for {COLOURS} lines; got {len(series)}"
    x_axis = axis_of_epochs([x for one in series for x in one.x], LEFT, WIDTH - RIGHT)
    heights = [y for one in series for y in one.y] + [0.0] * from_zero
    y_axis = axis_over(heights, HEIGHT - BOTTOM, TOP)
    drawing = Markup("").join(
        [
            *(horizontal_tick(y_axis.place(tick), describe(tick)) for tick in y_axis.ticks),
            *(vertical_tick(x_axis.place(tick), number(tick)) for tick in x_axis.ticks),
            Markup('<text class="label" x="{:.2f}" y="{:.2f}" text-anchor="end">{}</text>').format(
                WIDTH - RIGHT, HEIGHT - 2, x_label
            ),
            *(line(one, place, x_axis, y_axis, describe) for place, one in enumerate(series)),
        ]
    )
    keys = [Key(one.name, describe(one.y[-1]), place) for place, one in enumerate(series)]
    return Markup(
        '<figure class="chart"><figcaption><h3>{}</h3>{}</figcaption>'
        '<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg></figure>'
    ).format(title, legend(keys), WIDTH, HEIGHT, title, drawing)


def horizontal_tick(y: float, words: str) -> Markup:
    """A grid line and its number."""
    return Markup(
        '<line class="grid" x1="{:.2f}" x2="{:.2f}" y1="{:.2f}" y2="{:.2f}"/>'
        '<text class="tick" x="{:.2f}" y="{:.2f}" text-anchor="end">{}</text>'
    ).format(LEFT, WIDTH - RIGHT, y, y, LEFT - 8, y + 4, words)


def vertical_tick(x: float, words: str) -> Markup:
    """A mark on the lower edge and its number."""
    bottom = HEIGHT - BOTTOM
    return Markup(
        '<line class="mark" x1="{:.2f}" x2="{:.2f}" y1="{:.2f}" y2="{:.2f}"/>'
        '<text class="tick" x="{:.2f}" y="{:.2f}" text-anchor="middle">{}</text>'
    ).format(x, x, bottom, bottom + 4, x, bottom + 17, words)


def line(series: Series, place: int, x_axis: Axis, y_axis: Axis, describe: Describe) -> Markup:
    """The line of one series; its points are marked where they are few, otherwise its end."""
    points = [(x_axis.place(x), y_axis.place(y)) for x, y in zip(series.x, series.y, strict=True)]
    path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    drawn = Markup('<polyline class="line c{}" points="{}"/>').format(place, path)
    marked = range(len(points)) if len(points) <= MOST_DOTS else [len(points) - 1]
    for index in marked:
        words = f"{series.name}, {number(series.x[index])}: {describe(series.y[index])}"
        drawn += Markup('<circle class="dot c{}" cx="{:.2f}" cy="{:.2f}" r="2.6"><title>{}</title></circle>').format(
            place, *points[index], words
        )
    return drawn


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    name: str
    value: str
    colour: int


def legend(keys: Sequence[Key]) -> Markup:
    """Which colour is which, as text that wraps."""
    entry = Markup('<li><i class="key c{}"></i>{} <b>{}</b></li>')
    entries = Markup("").join(entry.format(key.colour, key.name, key.value) for key in keys)
    return Markup('<ul class="legend">{}</ul>').format(entries)


@dataclass(frozen=True)
class Bar:
    """A share with a name, and words on how it came about."""

    name: str
    share: Number
    note: str = ""


def bar_chart(bars: Sequence[Bar], describe: Describe = percent) -> Markup:
    """A bar from 0 to 1 for each."""
    row = Markup(
        '<li><span class="name" title="{}">{}</span><span class="bar"><i style="width:{:.2f}%"></i></span>'
        "<b>{}</b><small>{}</small></li>"
    )
    rows = (row.format(bar.name, bar.name, 100 * bar.share, describe(bar.share), bar.note) for bar in bars)
    return Markup('<ul class="bars">{}</ul>').format(Markup("").join(rows))


def heat_map(title: str, names: Sequence[str], counts: Sequence[Sequence[int]]) -> Markup:
    """How often the class of a row is taken for that of a column: right on the diagonal, mistakes in another colour."""
    short = [shortened(name) for name in names]
    margin = 10 + LETTER * max(map(len, short))
    side = min(LARGEST_CELL, max(SMALLEST_CELL, SPREAD / len(names)))
    whole = margin + side * len(names)
    drawing = Markup("")
    for row, own in enumerate(counts):
        middle = margin + side * (row + 0.5)
        drawing += name_of_row(names[row], short[row], margin - 6, middle)
        drawing += name_of_column(names[row], short[row], middle, margin - 6)
        for column, count in enumerate(own):
            words = f"{names[row]} taken for {names[column]}: {count:,} of {sum(own):,}"
            written = f"{count:,}" if len(names) <= NUMBERED and count else ""
            look = Look("right" if row == column else "wrong", count / max(1, sum(own)), written, words)
            drawing += cell(margin + side * column, margin + side * row, side, look)
    return Markup(
        '<div class="scroll"><svg class="heat" viewBox="0 0 {:g} {:g}" style="width:{:g}px" role="img" '
        'aria-label="{}">{}</svg></div>'
    ).format(whole, whole, whole, title, drawing)


@dataclass(frozen=True)
class Look:
    """Of a cell."""

    kind: str
    share: float
    """Of its row: the more, the stronger."""
    written: str
    words: str
    """Where one points at it."""


def cell(left: float, top: float, side: float, look: Look) -> Markup:
    """One cell of a heat map."""
    return Markup(
        '<g><title>{}</title><rect class="floor" x="{:.2f}" y="{:.2f}" width="{:g}" height="{:g}"/>'
        '<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:g}" height="{:g}" fill-opacity="{:.3f}"/>'
        '<text class="{}" x="{:.2f}" y="{:.2f}" text-anchor="middle">{}</text></g>'
    ).format(
        *(look.words, left, top, side - 1, side - 1),
        *(look.kind, left, top, side - 1, side - 1, look.share),
        *("strong" if look.share > 0.5 else "faint", left + side / 2 - 0.5, top + side / 2 + 3.5, look.written),
    )


def name_of_row(name: str, short: str, x: float, y: float) -> Markup:
    """To the left of its row."""
    words = Markup('<text class="tick" x="{:.2f}" y="{:.2f}" text-anchor="end"><title>{}</title>{}</text>')
    return words.format(x, y + 4, name, short)


def name_of_column(name: str, short: str, x: float, y: float) -> Markup:
    """Above its column, turned."""
    words = Markup('<text class="tick" transform="translate({:.2f} {:.2f}) rotate(-90)"><title>{}</title>{}</text>')
    return words.format(x + 4, y, name, short)


def shortened(name: str) -> str:
    """A name that fits beside a heat map."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
