"""The sanitizer group with a stand-in for the program: what runs, and what is made of its words."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from benchmarks import sanitizer
from benchmarks.sanitizer import Part, parts_of, portable_tests, run_tool, wrong_in

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """#!{python}
import subprocess, sys
words = sys.argv[1:]
first = words.index({python!r})
options, command = words[:first], words[first:]
assert options[:2] in (["--tool", "memcheck"], ["--tool", "racecheck"]), options
status = subprocess.run(command).returncode
number = sum("outside" in word for word in command)
if number:
    print("========= Invalid __shared__ read of size 16 bytes")
    print("=========     at relate_chunk+0xc020 in chunks.py:237")
print(f"========= ERROR SUMMARY: {{number}} error" + "s" * (number != 1))
sys.exit(status or 9 * bool(number))
"""
TESTS = """
import os
import pytest

@pytest.mark.needs_nvidia
@pytest.mark.parametrize("name", ["inside", "outside", "inaccurate"])
def test_kernel(name):
    assert os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
    assert name != "inaccurate"
"""


@pytest.fixture
def test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    program = tmp_path / sanitizer.PROGRAM
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # starts sooner
    path = tmp_path / "test_kernels.py"
    path.write_text(TESTS)
    return f"{path}::test_kernel"


def test_kernels_with_errors_are_told_by_name(
    test: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [Part("cache", (f"{test}[inside]",)), Part("recurrent", (f"{test}[outside]",))]
    found = run_tool("memcheck", parts)
    assert (found.status, found.ran, found.wrong) == (1, 2, ("relate_chunk",))
    printed = capsys.readouterr().out
    assert "memcheck, recurrent:" in printed
    assert "Invalid __shared__ read" in printed
    assert "memcheck, cache:" not in printed


def test_a_kernel_that_is_inaccurate_fails_and_has_no_error_of_the_tool(test: str) -> None:
    found = run_tool("racecheck", [Part("linear", (f"{test}[inaccurate]",))])
    assert (found.status, found.ran, found.wrong) == (1, 1, ())


def test_a_process_without_a_last_line_counts_as_its_part() -> None:
    part = Part("latent", ("a", "b"))
    assert wrong_in(part, "stopped after 280 s") == {"latent: a"}
    assert wrong_in(part, "========= ERROR SUMMARY: 0 errors") == set()
    raced = "Race reported between Write access at void merge+0x1a0 and Read access at join+0x20\n"
    last = "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)"
    assert wrong_in(part, raced + last) == {"merge", "join"}
    warned = "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"
    assert wrong_in(part, warned) == set()


def test_every_portable_offer_is_in_one_part() -> None:
    from tests.plugins_nvidia.test_kernels import COMBINATIONS

    tests = portable_tests()
    parts = parts_of(tests)
    ran = [name for part in parts for name in part.tests]
    assert len(ran) == len(set(ran))
    assert max(len(part.tests) for part in parts) <= sanitizer.OFFERS
    known = {f"{sanitizer.TEST}[{param.id}]" for param in COMBINATIONS}
    assert set(ran) <= known
    offers = {name.rpartition("-")[0] for name in known}
    assert {name.rpartition("-")[0] for name in ran} == offers


def test_an_absent_program_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert sanitizer.sanitize() == (2, [])
    assert "compute-sanitizer is not on the PATH" in capsys.readouterr().err
