"""Draws models.svg: multiply-adds of each model against the top-1 that its paper prints.

python docs/draw_models.py docs/models.svg
"""

import sys
from math import log2

from alltokens.files import write_atomically
from alltokens.models.counts import count
from alltokens.models.published import PaperRow, headline
from alltokens.models.zoo import find, list_models

COLORS = {"LV-ViT": "#c2410c", "CaiT": "#1d4ed8", "ViT as 3T trains it": "#15803d"}
FAMILIES = {"TL": "LV-ViT", "CaiT": "CaiT", "3T": "ViT as 3T trains it"}
TABLES = {"TL, Table 1", "TL, Table 6", "CaiT, Table 3", "3T, Table 1", "3T, Table 2", "3T, Table 5"}
# Their names would cover another dot on the left.
NAMED_ON_THE_RIGHT = {"lvvit_l_288", "lvvit_l_512"}

WIDTH, HEIGHT = 860, 440
LEFT, RIGHT, TOP, BOTTOM = 60, 90, 20, 50
LEAST_FLOPS, MOST_FLOPS = 1.0, 256.0
LEAST_TOP1, MOST_TOP1 = 72.0, 87.0


def x_of(gflops: float) -> float:
    """Horizontal place; each doubling takes the same room."""
    share = log2(gflops / LEAST_FLOPS) / log2(MOST_FLOPS / LEAST_FLOPS)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y_of(top1: float) -> float:
    """Vertical place."""
    return HEIGHT - BOTTOM - (top1 - LEAST_TOP1) / (MOST_TOP1 - LEAST_TOP1) * (HEIGHT - TOP - BOTTOM)


def drawn_rows() -> list[PaperRow]:
    """Headline rows of the three families, those with a teacher and those of other papers' baselines left out."""
    rows = [row for name in list_models() if (row := headline(name)) is not None]
    baselines = ("deit", "t2t_vit", "vit_b_384", "vit_l_384")
    return [row for row in rows if row.where in TABLES and not row.distilled and not row.name.startswith(baselines)]


def point(row: PaperRow) -> list[str]:
    """A dot that says its name when pointed at; LV-ViT's names are written beside it."""
    assert row.top1 is not None
    family = FAMILIES[row.paper]
    x, y = x_of(count(find(row.name)).flops / 1e9), y_of(float(row.top1))
    title = f"<title>{row.name}: {row.top1} % ({row.where})</title>"
    marks = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{COLORS[family]}" fill-opacity="0.8">{title}</circle>']
    if family == "LV-ViT":
        side, anchor = (8, "start") if row.name in NAMED_ON_THE_RIGHT else (-8, "end")
        marks.append(f'<text x="{x + side:.1f}" y="{y - 6:.1f}" text-anchor="{anchor}">{row.name}</text>')
    return marks


def axes() -> list[str]:
    """Grid lines with their numbers, and what the numbers mean."""
    marks = []
    for gflops in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        x = x_of(gflops)
        marks.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e5e7eb"/>')
        marks.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{gflops}</text>')
    for top1 in range(72, 88, 2):
        y = y_of(top1)
        marks.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        marks.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{top1}</text>')
    middle = f'x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle"'
    side = f'transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle"'
    marks.append(f"<text {middle}>GFLOPs (multiply-adds for one image)</text>")
    marks.append(f"<text {side}>ImageNet top-1 as printed (%)</text>")
    return marks


def legend() -> list[str]:
    """The families' colours, boxed in the empty corner."""
    left, top = WIDTH - RIGHT - 190, HEIGHT - BOTTOM - 90
    marks = [f'<rect x="{left}" y="{top}" width="170" height="74" fill="#ffffff" stroke="#9ca3af"/>']
    for place, (family, color) in enumerate(COLORS.items()):
        y = top + 16 + 21 * place
        marks.append(f'<circle cx="{left + 16}" cy="{y}" r="5" fill="{color}" fill-opacity="0.8"/>')
        marks.append(f'<text x="{left + 28}" y="{y + 4}">{family}</text>')
    return marks


def drawing() -> str:
    """The whole picture; it brings its own background, for pages that are dark."""
    marks = axes() + [mark for row in drawn_rows() for mark in point(row)] + legend()
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11" fill="#1f2937">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *marks, "</svg>"]) + "\n"


if __name__ == "__main__":
    write_atomically(sys.argv[1], lambda file: file.write(drawing().encode()))
