"""Writes docs/plugins/errors.md from the table of diagnostics: `python docs/generate_errors.py`."""

from __future__ import annotations

from pathlib import Path

from tokenspeed.diagnostics import DIAGNOSTICS, EXIT_CODES, Diagnostic

PAGE = Path(__file__).with_name("plugins") / "errors.md"
HEAD = """# Errors about plugins

Every error about plugins ends with the id of a diagnostic in brackets; this page has a section for
each. Ids are stable: scripts and alerts may match them. Below an error, `caused by` lines tell what
lay behind it, also in another process. Written by `python docs/generate_errors.py` from
`core/tokenspeed/diagnostics.py`.

## Exit codes

| code | meaning |
|---|---|
"""


def page() -> str:
    """Return the page's text."""
    codes = "".join(f"| {code} | {text} |\n" for code, text in sorted(EXIT_CODES.items()))
    return HEAD + codes + "".join(_section(item) for item in DIAGNOSTICS.values())


def _section(item: Diagnostic) -> str:
    code = str(item.exit_code) if item.exit_code else "none, the process goes on"
    return f"\n## {item.id}\n\n{item.summary}\n\n- Exit code: {code}\n- What to do: {item.fix}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
