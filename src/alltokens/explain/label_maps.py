"""Score maps drawn over their images: each cell in the colour of its first class, the surer the stronger."""

import colorsys
from collections.abc import Callable, Sequence

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from alltokens.labels.score_map import ScoreMap
from alltokens.shapes import Float, Int

STRONGEST = 0.75
"""How much of a cell's colour covers the image where the annotator is certain."""
PANEL, MARGIN, LINE, TEXT = 320, 12, 20, 14
"""Width of a picture, space around it, height of a line of the legend and of its letters, in pixels."""
TALLEST = 4 * PANEL
"""A picture of an image that is narrower still is squeezed."""
LEGEND_LINES = 4
INK, PAPER = (30, 30, 30), (255, 255, 255)

Colour = tuple[int, int, int]


def draw_score_map(image: Image.Image, score_map: ScoreMap, describe: Callable[[int], str]) -> Image.Image:
    """The image, the same under its map, and which colour is which class."""
    height = min(TALLEST, max(1, round(PANEL * image.height / image.width)))
    small = image.convert("RGB").resize((PANEL, height), Image.Resampling.LANCZOS)
    colours = class_colours(score_map)
    sheet = Image.new("RGB", (2 * PANEL + MARGIN, height + MARGIN // 2 + LEGEND_LINES * LINE), PAPER)
    sheet.paste(small, (0, 0))
    sheet.paste(under_map(small, score_map, colours), (PANEL + MARGIN, 0))
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(TEXT)
    for line, (number, colour) in enumerate(list(colours.items())[:LEGEND_LINES]):
        top = height + MARGIN // 2 + line * LINE
        pen.rectangle((0, top + 3, TEXT, top + 3 + TEXT), fill=colour)
        share = float((score_map.classes[0] == number).float().mean())
        words = f"{describe(number)}: first in {share:.0%} of the cells"
        pen.text((TEXT + 8, top + 1), shortened(words, font, sheet.width - TEXT - 8), fill=INK, font=font)
    return sheet


def contact_sheet(pictures: Sequence[Image.Image], columns: int = 2) -> Image.Image:
    """Several pictures on one page, in rows."""
    rows = [pictures[at : at + columns] for at in range(0, len(pictures), columns)]
    heights = [max(picture.height for picture in row) for row in rows]
    width = max(sum(picture.width + 2 * MARGIN for picture in row) for row in rows)
    sheet = Image.new("RGB", (width, sum(height + 2 * MARGIN for height in heights)), PAPER)
    top = MARGIN
    for row, height in zip(rows, heights, strict=True):
        left = MARGIN
        for picture in row:
            sheet.paste(picture, (left, top))
            left += picture.width + 2 * MARGIN
        top += height + 2 * MARGIN
    return sheet


def class_colours(score_map: ScoreMap) -> dict[int, Colour]:
    """A colour for each class that is first in a cell, those that are first most often before the others."""
    return colours_of(score_map.classes[0])


def colours_of(numbers: Tensor) -> dict[int, Colour]:
    """A colour for each class among the numbers, the most frequent classes before the others."""
    classes, counts = numbers.unique(return_counts=True)
    ordered = classes[counts.argsort(descending=True, stable=True)].tolist()
    # The golden ratio keeps the hues of neighbours in this order far apart, however many there are.
    hues = [(0.02 + place * 0.618034) % 1.0 for place in range(len(ordered))]
    rgb = [colorsys.hsv_to_rgb(hue, 0.85, 0.95) for hue in hues]
    return {
        number: (round(255 * r), round(255 * g), round(255 * b)) for number, (r, g, b) in zip(ordered, rgb, strict=True)
    }


def under_map(image: Image.Image, score_map: ScoreMap, colours: dict[int, Colour]) -> Image.Image:
    """The image tinted cell by cell."""
    return tinted(image, score_map.classes[0], (score_map.logits[0] - score_map.normalizer).exp(), colours)


def tinted(
    image: Image.Image, first: Int[Tensor, "h w"], certainty: Float[Tensor, "h w"], colours: dict[int, Colour]
) -> Image.Image:
    """The image under a grid of colours, those of classes, the surer the stronger."""
    numbers = first.flatten().tolist()
    tints = torch.tensor([colours[number] for number in numbers], dtype=torch.uint8).view(*first.shape, 3)
    cover = (255 * STRONGEST * certainty.clamp(max=1)).round().to(torch.uint8)
    as_seen = image.size, Image.Resampling.NEAREST
    tint = Image.fromarray(tints.numpy(), "RGB").resize(*as_seen)
    return Image.composite(tint, image, Image.fromarray(cover.numpy(), "L").resize(*as_seen))


def shortened(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: int) -> str:
    """Text that fits, its end left out if it must."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
