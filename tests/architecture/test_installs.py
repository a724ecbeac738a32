"""Our wheels come from paths, never from an index: a stranger owns their names there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.source_tree import ROOT, files_under

WHEELS = {"tokenspeed", "tokenspeed-sdk", "tokenspeed-reference", "tokenspeed-nvidia"}
WHEELS |= {"tokenspeed-amd"}
OWN_PATHS = {".", "./sdk", "./plugins_reference", "./plugins_nvidia", "./plugins_amd", "$(WHEELS)"}
REQUIRED = {"--no-index", "--no-deps"}
PIP = re.compile(r"(?:pip3?|uv pip|\bpipx?|uv)\s+(?:\S+\s+)*?(install|download|wheel|add)\s+(.*)")


def problem_of(line: str) -> str:
    """Return what is wrong with a line that calls pip, or ""."""
    match = PIP.search(line)
    if match is None:
        return ""
    words = [word.strip("'\"`;,") for word in match.group(2).split()]
    names = {re.split(r"[\[=<>~!@]", word)[0].lower().replace("_", "-") for word in words}
    if names & WHEELS:
        return "names one of our wheels"
    if set(words) & OWN_PATHS and not set(words) >= REQUIRED:
        return "installs our paths without --no-index --no-deps"
    return ""


REQUIREMENTS = ("requirements.txt", "requirements-dev.txt")


def command_files() -> list[Path]:
    names = ("Makefile", "README.md", *REQUIREMENTS, ".ci/run")
    named = [ROOT / name for name in names]
    suffixes = (".md", ".toml", ".yml", ".yaml", ".sh", ".j2", ".txt", "")
    folders = (".ci", ".github", "docs", "templates", "benchmarks", "sdk")
    return [file for file in {*named, *files_under(*folders, suffixes=suffixes)} if file.is_file()]


def test_no_command_takes_our_wheels_from_an_index() -> None:
    wrong = []
    for file in command_files():
        lines = file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        for number, line in enumerate(lines, 1):
            if problem := problem_of(line):
                wrong.append(f"{file.relative_to(ROOT)}:{number} {problem}: {line.strip()}")
    assert wrong == []


def test_requirements_name_none_of_our_wheels() -> None:
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in REQUIREMENTS)
    names = re.findall(r"^[\w.-]+", text, re.MULTILINE)
    assert not {name.lower().replace("_", "-") for name in names} & WHEELS


@pytest.mark.parametrize(
    "line",
    [
        "pip install tokenspeed",
        "python -m pip install -q 'tokenspeed[all]>=0.1'",
        "uv pip install tokenspeed_sdk",
        "pip download tokenspeed-nvidia==0.1.0",
        "$(BIN)/python -m pip install -e . -e ./sdk",
        "pip install --no-index $(WHEELS)",
    ],
)
def test_the_rule_finds_wrong_commands(line: str) -> None:
    assert problem_of(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install torch numpy",
        "python -m pip install -q --no-index --no-deps --no-build-isolation -e . -e ./sdk",
        "python -m pip install -r requirements.txt",
        "python -m pip check",
    ],
)
def test_the_rule_spares_right_commands(line: str) -> None:
    assert problem_of(line) == ""
