"""Children that run Python look for no module in the working folder (`-P`)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.support.server import hostile_folder
from tests.support.source_tree import ROOT, files_under

from tokenspeed.plugins.child_process import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

FOLDERS = ("core", "sdk", "plugins_reference", "plugins_nvidia", "plugins_amd", "benchmarks")


def commands() -> Iterator[tuple[str, list[object]]]:
    """Yield where a list starts with this Python and runs a module, and its constants."""
    for path in files_under(*FOLDERS):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "sys.executable" in text else ():
            if isinstance(node, ast.List) and node.elts and _is_python(node.elts[0]):
                words = [getattr(item, "value", None) for item in node.elts[1:]]
                yield f"{path.relative_to(ROOT)}:{node.lineno}", words


def _is_python(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "executable"


def test_every_command_that_runs_a_module_says_so() -> None:
    found = {where: words for where, words in commands() if "-m" in words}
    assert len(found) >= 5
    assert [where for where, words in found.items() if words[0] != "-P"] == []


def test_a_child_process_imports_nothing_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile_folder(tmp_path))
    ended = ChildProcess("json.tool", ["--help"]).finish(30)
    assert ended.code == 0
    assert "usage" in ended.output
