"""The repository as data for architecture tests: files that git tracks, and what they import."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("core", "sdk", "plugins_reference", "plugins_nvidia", "plugins_amd")


@dataclass(frozen=True, slots=True)
class Import:
    """One absolute module or `module.name` that a file imports, anywhere in it."""

    file: Path
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.target}"


@lru_cache(maxsize=1)
def tracked_files() -> tuple[Path, ...]:
    """Return the files of the repository: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    files = (ROOT / name for name in output.split("\0") if name)
    return tuple(file for file in files if file.is_file())


def files_under(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> list[Path]:
    """Return repository files below the folders, by suffix."""
    roots = [ROOT / folder for folder in folders]
    return [
        file
        for file in tracked_files()
        if file.suffix in suffixes and any(file.is_relative_to(root) for root in roots)
    ]


@cache
def imports_of(file: Path) -> tuple[Import, ...]:
    """Return every import of a file: at the top, inside functions, and for types only."""
    found: list[Import] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            found += [Import(file, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [Import(file, node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return tuple(found)
