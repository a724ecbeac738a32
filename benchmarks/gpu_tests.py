"""Runs tests that need a GPU; those that a lost device leaves are run again, in a fresh process.

Knows pytest, and what `tests.support.lost_device` writes; not which tests there are. Called by
`gpu_check` and `sanitizer`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from benchmarks.results_file import Row
from tests.support.lost_device import LEFT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).parent.parent
COMMIT = os.environ.get("GPU_CHECK_COMMIT", "")
"""Of the code that runs, where it is no checkout; "": git says it."""
MOST_WORKERS = 10
"""At once, of one GPU: each has a context and compiles kernels of its own."""
WORST = 1e6
"""Stands for errors that are no numbers."""


@dataclass(slots=True)
class Ended:
    """How tests ended.

    Args:
        status: of pytest, the highest of all rounds; 0: all that ran passed.
        ran, failed: tests.
        properties: what each test that ran recorded.
        output: what was printed, where it was asked for.
    """

    status: int = 0
    ran: int = 0
    failed: int = 0
    seconds: float = 0.0
    properties: list[dict[str, str]] = field(default_factory=list)
    output: str = ""


def workers(arguments: Sequence[str]) -> list[str]:
    """Return the options that run tests side by side, where pytest can and is not told how."""
    is_told = any(word.startswith(("-n", "--numprocesses")) for word in arguments)
    if is_told or importlib.util.find_spec("xdist") is None:
        return []
    return ["-n", str(min(MOST_WORKERS, os.cpu_count() or 1))]


def run_tests(
    tests: Sequence[str],
    options: Sequence[str] = (),
    *,
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    is_captured: bool = False,
    timeout_s: float | None = None,
) -> Ended:
    """Run tests in a process, and those that it left in further ones.

    Args:
        tests: paths or node ids, from the repository's root.
        options: of pytest.
        prefix: a program that runs pytest, with its options.
        environment: beside this process's own.
        is_captured: what is printed is returned instead.
        timeout_s: of one process.
    """
    ended, started_s, left = Ended(), time.monotonic(), sorted(tests)
    with tempfile.TemporaryDirectory() as folder:
        report, names = Path(folder) / "report.xml", Path(folder) / "left"
        command = [*prefix, sys.executable, "-P", "-m", "pytest", "-m", "needs_nvidia"]
        command += ["-p", "no:cacheprovider", "-p", "no:benchmark"]
        command += [f"--junitxml={report}", "-o", "junit_family=xunit1"]  # the one with properties
        variables = {**os.environ, **(environment or {}), LEFT: str(names)}
        while left:
            before = left
            run = partial(_run, [*command, *options, *before], variables, timeout_s)
            status, printed = run(is_captured=is_captured)
            ended.status, ended.output = max(status, ended.status), ended.output + printed
            left = _taken(names)
            if left == before or not report.exists():  # the process died
                ended.failed += 1
                ended.status = max(1, ended.status)
                break
            _add(report, ended)
            report.unlink()
    ended.seconds = time.monotonic() - started_s
    return ended


def _run(
    command: list[str],
    environment: Mapping[str, str],
    timeout_s: float | None,
    *,
    is_captured: bool,
) -> tuple[int, str]:
    """Run a command; return its status, 1 where a signal or the time ended it, and its output."""
    stdout, stderr = (subprocess.PIPE, subprocess.STDOUT) if is_captured else (None, None)
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=stdout, stderr=stderr, text=True,
        start_new_session=timeout_s is not None,
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the tests too, not only what runs them
        printed, _ = process.communicate()
        printed = f"{printed or ''}\nstopped after {timeout_s:g} s\n"
    return process.returncode if process.returncode >= 0 else 1, printed or ""


def _taken(names: Path) -> list[str]:
    """Return the tests that were left, once."""
    if not names.exists():
        return []
    left = sorted(set(names.read_text().splitlines()))
    names.unlink()
    return left


def _add(report: Path, ended: Ended) -> None:
    suite = ElementTree.parse(report).getroot()[0]
    count = {name: int(suite.attrib[name]) for name in ("tests", "skipped", "failures", "errors")}
    ended.ran += count["tests"] - count["skipped"]
    ended.failed += count["failures"] + count["errors"]
    for case in suite.iter("testcase"):
        if case.find("skipped") is None:
            found = {item.attrib["name"]: item.attrib["value"] for item in case.iter("property")}
            ended.properties.append(found)


def rows_of(group: str, ended: Ended) -> list[Row]:
    """Return how many tests ran, how many of them did not pass, and how far off kernels are."""
    row = partial(
        Row, group="gpu-check", command=f'make gpu-check ARGS="--only {group}"', commit=COMMIT
    )
    rows = [
        row(name=f"{group}: tests that ran", value=ended.ran, unit="tests", better="higher"),
        row(name=f"{group}: tests that failed", value=ended.failed, unit="tests", better="lower",
            target="0"),
        row(name=f"{group}: time", value=round(ended.seconds, 1), unit="s", better="lower",
            target="600"),
    ]  # fmt: skip
    for family, (cases, error) in _worst(ended.properties).items():
        name = f"kernels of {family}"
        rows += [
            row(name=f"{name}: cases", value=cases, unit="cases", better="higher"),
            row(name=f"{name}: worst error", value=round(min(error, WORST), 3), better="lower",
                unit="of what is allowed", target="1"),
        ]  # fmt: skip
    return rows


def _worst(properties: Iterable[Mapping[str, str]]) -> dict[str, tuple[int, float]]:
    """Return the cases and the largest error of each family of kernels."""
    found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for test in properties:
        if family := test.get("family"):
            cases, error = found[family]
            found[family] = cases + int(test["cases"]), max(error, float(test["error"]))
    return dict(found)
