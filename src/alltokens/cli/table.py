"""Tables for people: ruled on a terminal, plain aligned lines of any length when piped."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDER_THAN_ANY_ROW = 1000


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str]) -> None:
    """Print rows of text under their headings; the columns named in `left` are flush left, numbers flush right."""
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=WIDER_THAN_ANY_ROW)
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(column), justify="left" if column in left else "right", no_wrap=not console.is_terminal)
    for row in rows:
        # As Text, because rich would take brackets and colons in a name for its own markup.
        table.add_row(*map(Text, row))
    console.print(table)
