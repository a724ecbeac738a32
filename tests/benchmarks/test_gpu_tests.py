"""Tests of a GPU, run where there is none: a variable of the process stands for the lost device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks import gpu_tests
from benchmarks.gpu_tests import ROOT, Ended, rows_of, run_tests, workers

if TYPE_CHECKING:
    from pathlib import Path

HOOKS = """
import os
from tests.support.lost_device import LostDevice

def pytest_configure(config):
    config.pluginmanager.register(LostDevice(lambda: "LOST" not in os.environ))
"""
TESTS = """
import os
import pytest

pytestmark = pytest.mark.needs_nvidia

@pytest.mark.parametrize("number", range(9))
def test_number(number, record_property):
    assert "LOST" not in os.environ, "ran on a lost device"
    record_property("number", number)
    if number in (1, 4):
        os.environ["LOST"] = "1"
    assert number not in (1, 2, 4)
"""
OPTIONS = ("-q", "-c", str(ROOT / "pyproject.toml"), "-p", "pytest_timeout")
BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Starts sooner."""


@pytest.fixture
def tests(tmp_path: Path) -> list[str]:
    (tmp_path / "conftest.py").write_text(HOOKS)
    path = tmp_path / "test_numbers.py"
    path.write_text(TESTS)
    return [str(path)]


@pytest.mark.parametrize(
    "side_by_side",
    [
        pytest.param((), id="one process"),
        pytest.param(("-p", "xdist", "-n", "2"), id="two", marks=pytest.mark.slow),
    ],
)
def test_a_lost_device_fails_the_test_that_lost_it_alone(
    tests: list[str], side_by_side: tuple[str, ...]
) -> None:
    options = [*OPTIONS, *side_by_side]
    ended = run_tests(tests, options, environment=BARE, is_captured=True)
    assert (ended.status, ended.ran, ended.failed) == (1, 9, 3), ended.output
    numbers = sorted(int(found["number"]) for found in ended.properties)
    assert numbers == list(range(9))
    assert "AssertionError: ran on a lost device" not in ended.output


def test_a_process_that_dies_or_does_not_end_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "test_death.py"
    mark = "import os, time, pytest\npytestmark = pytest.mark.needs_nvidia\n"
    path.write_text(f"{mark}def test_death():\n    os.kill(os.getpid(), 9)\n")
    died = run_tests([str(path)], OPTIONS, environment=BARE, is_captured=True)
    path.write_text(f"{mark}def test_sleep():\n    time.sleep(60)\n")
    stopped = run_tests([str(path)], OPTIONS, environment=BARE, is_captured=True, timeout_s=1.5)
    assert "stopped after 1.5 s" in stopped.output
    for ended in (died, stopped):
        assert (ended.status, ended.ran, ended.failed) == (1, 0, 1), ended.output


def test_rows_tell_the_cases_and_the_worst_error_of_each_family_of_kernels() -> None:
    properties = [
        {"family": "linear", "cases": "4", "error": "0.25"},
        {"family": "linear", "cases": "3", "error": "1.5"},
        {"family": "latent", "cases": "1", "error": "inf"},
        {},
    ]
    rows = rows_of("kernels", Ended(status=1, ran=4, failed=2, properties=properties))
    assert {row.name: row.value for row in rows} == {
        "kernels: tests that ran": 4,
        "kernels: tests that failed": 2,
        "kernels: time": 0,
        "kernels of linear: cases": 7,
        "kernels of linear: worst error": 1.5,
        "kernels of latent: cases": 1,
        "kernels of latent: worst error": gpu_tests.WORST,
    }


def test_who_says_how_many_processes_run_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tests.os, "cpu_count", lambda: 16)
    assert workers([]) == ["-n", "10"]
    assert workers(["-n0"]) == []
    monkeypatch.setattr(gpu_tests.importlib.util, "find_spec", lambda name: None)
    assert workers([]) == []
