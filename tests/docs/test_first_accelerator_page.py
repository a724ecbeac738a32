"""The commands of docs/plugins/first-accelerator.md print what the page says, one after another."""

from __future__ import annotations

import fnmatch
import re
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.support.overlay import Overlay
from tests.support.source_tree import ROOT

from tokenspeed.plugins.rungs import RUNGS

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "plugins" / "first-accelerator.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, list[str]]]:
    """Return each command with the lines that the page shows below it."""
    found: list[tuple[str, list[str]]] = []
    for line in "".join(BLOCKS).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def run(overlay: Overlay, command: str, folder: Path) -> str:
    """Run a command as a reader would, in the overlay; return what it prints on stdout."""
    words = shlex.split(command)
    if words[:4] == ["python", "-m", "pip", "install"]:
        overlay.install(folder / words[-1])
        return ""
    arguments = words[1:] if words[0] == "python" else ["-m", *words]
    done = subprocess.run(
        [str(overlay.python), *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=folder,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_printed(shown: list[str], printed: str, command: str) -> None:
    """Each line shown comes in order, `...` standing for any text; a line of it for any lines."""
    lines = iter(printed.splitlines())
    skips = False
    for wanted in shown:
        if wanted.strip() == "...":
            skips = True
            continue
        pattern = wanted.replace("[", "[[]").replace("...", "*")
        for line in lines:
            if fnmatch.fnmatchcase(line.rstrip(), pattern.rstrip()):
                break
            assert skips, f"{command}: prints {line!r}, the page shows {wanted!r}"
        else:
            pytest.fail(f"{command}: {wanted!r} is on the page and was not printed")
        skips = False


@pytest.mark.slow
def test_every_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path / "venv")
    steps = commands()
    assert len(steps) >= 9
    for command, shown in steps:
        assert_printed(shown, run(overlay, command, tmp_path), command)


def test_the_ladder_of_the_page_is_that_of_the_doctor() -> None:
    rows = re.findall(r"^\| (R\d) \| (.+?) \|$", PAGE, re.MULTILINE)
    told = [(name, meaning.partition(" (")[0]) for name, meaning in rows]
    assert told == [(name, meaning) for name, meaning, _ in RUNGS]


def test_a_line_that_was_not_printed_is_found() -> None:
    with pytest.raises(pytest.fail.Exception, match="was not printed"):
        assert_printed(["...", "b"], "a\nc\n", "x")
    with pytest.raises(AssertionError, match="prints 'a'"):
        assert_printed(["b"], "a\nb\n", "x")
    assert_printed(["a ... z", "...", "[b]"], "a 1 z\nc\n[b]\n", "x")
