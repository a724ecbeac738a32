"""Tables on stdout: rich on a terminal, plain aligned columns elsewhere, so that they grep.

rich is imported only where somebody looks: it costs more than a listing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", indent: str = ""
) -> None:
    """Print `rows` under `heads`, each column as wide as its widest cell."""
    if sys.stdout.isatty():
        _print_rich(heads, rows, title)
        return
    if title:
        print(title)
    cells = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    for row in cells:
        line = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        print(indent + line.rstrip())


_STYLES = {
    "won": "green",
    "refused": "red",
    "problem": "red",
    "note": "yellow",
    "ok": "green",
    "never": "red",
    "all_reduce": "bold yellow",
    "all_gather": "bold yellow",
    "reduce_scatter": "bold yellow",
    "pass": "bold yellow",
    "slice": "dim",
    "first": "dim",
    "view": "dim",
}
"""Cells that say how it went, and what goes over a link."""


def _print_rich(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False
    )
    for head in heads:
        table.add_column(head, header_style="bold", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    Console().print(table)
