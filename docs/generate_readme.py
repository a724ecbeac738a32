"""Rewrites what is generated in README and docs/performance.md: the file tree, tables of figures.

`python docs/generate_readme.py` writes, `--check` only says whether both are current.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

TREE_ROOTS = ("csrc", "core", "sdk", "plugins_reference", "plugins_nvidia", "plugins_amd")


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring or comment block, on one line."""
    sentence = re.split(r"(?<=[.;])\s", " ".join(text.split()), maxsplit=1)[0]
    return sentence.rstrip(".;:")


def describe(path: Path) -> str:
    """Say what a file is for, from its own head."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return first_sentence(ast.get_docstring(ast.parse(text)) or "")
    lines = []
    for line in text.splitlines():
        if not line.startswith("//"):
            if lines:
                break
            continue
        lines.append(line.removeprefix("//").strip())
    return first_sentence(" ".join(lines))


def tree() -> str:
    """Draw the source tree: every header and Python file with its first sentence."""
    listed = subprocess.run(
        ["git", "ls-files", *TREE_ROOTS], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.split()
    lines, shown = [], set()
    names = [Path(name) for name in listed if name.endswith((".py", ".h"))]
    for path in sorted(names, key=lambda path: (str(path.parent), path.name)):
        folder = str(path.parent)
        if folder not in shown:
            shown.add(folder)
            about = (
                describe(ROOT / folder / "__init__.py")
                if path.suffix == ".py" and (ROOT / folder / "__init__.py").exists()
                else ""
            )
            lines.append(f"{folder}/".ljust(44) + (f"  {about}" if about else ""))
        if path.name != "__init__.py":
            lines.append(f"  {path.name}".ljust(30) + f"  {describe(ROOT / path)}")
    return "```\n" + "\n".join(line.rstrip() for line in lines) + "\n```"


def benchmark_table() -> str:
    """Render every serving figure of every machine's results file."""
    from benchmarks.results_file import RESULTS, markdown_table

    parts = []
    for path in sorted(RESULTS.glob("*.json")):
        parts.append(f"`{path.relative_to(ROOT)}`\n\n{markdown_table(path, ('serving',))}")
    return "\n\n".join(parts) or "No results yet: run `make bench`."


def device_tables() -> str:
    """Render the figures of models on devices, a table a machine and model."""
    from benchmarks.device.figures import FIGURES
    from benchmarks.results_file import RESULTS, markdown_table

    parts = []
    for path in sorted(RESULTS.glob("*.json")):
        for model in FIGURES:
            table = markdown_table(path, (model,))
            if table.count("\n") > 1:
                parts.append(f"`{path.relative_to(ROOT)}`, {model}\n\n{table}")
    return "\n\n".join(parts) or "Nothing was measured yet: run `make gpu-check`."


PARTS = {
    "README.md": {"tree": tree, "benchmarks": benchmark_table},
    "docs/performance.md": {"devices": device_tables},
}


def render(page: str, text: str) -> str:
    """Replace each `<!-- name -->...<!-- /name -->` part of a page by its current text."""
    for name, make in PARTS[page].items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{make()}\n{end}{rest.split(end)[1]}"
    return text


def main() -> int:
    """Write the pages or, with --check, compare them."""
    stale = 0
    for page in PARTS:
        path = ROOT / page
        old = path.read_text(encoding="utf-8")
        new = render(page, old)
        if "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
        elif old != new:
            print(f"{page} is not current; run `python docs/generate_readme.py`")
            stale = 1
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
