"""Draws the request state machine of docs/control-plane.md from the extension's own table.

`python docs/generate_diagram.py` rewrites the part between the markers; `--check` only says whether
the page is current. The rest of the page is prose and stays as it is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tokenspeed._core import transition_table

PAGE = Path(__file__).with_name("control-plane.md")
BEGIN, END = "<!-- transitions -->", "<!-- /transitions -->"
FIRST, LAST = "Submitted", "Finished"

Cell = tuple[str, str, str]


def diagram(cells: list[Cell]) -> str:
    """Return a mermaid state diagram, and the table of what becomes of the handles."""
    return f"```mermaid\n{_chart(cells)}\n```\n\n{_table(cells)}"


def page(text: str, cells: list[Cell]) -> str:
    """Return the page's text with the part between the markers drawn anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{diagram(cells)}\n{END}{tail}"


def moves(cells: list[Cell]) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Return (state, event, targets, dispositions) of every cell that moves."""
    found = []
    for state, event, text in cells:
        match = re.match(r"To<(.*?)>(.*)", text)
        if match:
            found.append((state, event, tuple(match[1].split(", ")), match[2].strip()))
    return found


def _chart(cells: list[Cell]) -> str:
    edges: dict[tuple[str, str], list[str]] = {}
    for state, event, targets, _ in moves(cells):
        for target in targets:
            edges.setdefault((state, target), []).append(event)
    lines = [f"    {source} --> {target}: {', '.join(events)}"
             for (source, target), events in edges.items()]  # fmt: skip
    return "\n".join(
        ["stateDiagram-v2", f"    [*] --> {FIRST}: submit", *lines, f"    {LAST} --> [*]"]
    )


def _table(cells: list[Cell]) -> str:
    """Group the events of a state that do the same."""
    rows: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for state, event, targets, handles in moves(cells):
        rows.setdefault((state, targets, handles), []).append(event)
    head = "| in | on | goes to | slot and blocks |\n|---|---|---|---|"
    lines = [
        f"| {state} | {', '.join(events)} | {' or '.join(targets)} | {_handles(handles)} |"
        for (state, targets, handles), events in rows.items()
    ]
    ignored = _others(cells, "Ignore")
    return "\n".join([head, *lines, "", f"Ignored: {ignored}. Every other pair is refused."])


def _handles(text: str) -> str:
    dispositions = {part.split(":")[1].lower() for part in text.split()}
    assert len(dispositions) < 2, "the page has one column for both handles; give each its own"
    return _MEANING[dispositions.pop()] if dispositions else "-"


_MEANING = {
    "keep": "kept",
    "release": "given back",
    "lend": "kept while a step or a transfer uses them, else given back",
}


def _others(cells: list[Cell], outcome: str) -> str:
    by_state: dict[str, list[str]] = {}
    for state, event, text in cells:
        if text == outcome:
            by_state.setdefault(state, []).append(event)
    return "; ".join(f"{', '.join(events)} in {state}" for state, events in by_state.items())


def main() -> int:
    """Rewrite the page, or with --check compare it."""
    present = PAGE.read_text(encoding="utf-8")
    wanted = page(present, transition_table())
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if present == wanted:
        return 0
    print(f"{PAGE} is not what the table says; run: python docs/generate_diagram.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
