"""A page as one file: a template with the look that all pages share, everything that is put into it escaped."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from alltokens import files

TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> Environment:
    """Templates by name; one that uses what it was not given is our mistake."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["share"] = whole_percent
    return found


def whole_percent(share: float) -> str:
    """`71 %`, and `below 1 %` for what would look like nothing."""
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%" if share >= 0.01 or share == 0 else "below 1\N{NO-BREAK SPACE}%"


def render(template: str, values: Mapping[str, object]) -> str:
    """The whole page."""
    return environment().get_template(template).render(values)


def write_page(path: Path, page: str) -> None:
    """Names from other systems may have no UTF-8."""
    content = page.encode("utf-8", "backslashreplace")
    files.write_atomically(path, lambda file: file.write(content))
