"""A device that answers nothing but errors fails one test, not all that come after it.

After an access outside of its memory a process cannot use its GPU again. The tests that it has left
are skipped, and their names written where the variable LEFT says: `benchmarks.gpu_tests` runs them
in a fresh process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

LEFT = "TOKENSPEED_TESTS_LEFT"
"""Environment variable: a file that gets a line for each test that was not run."""


def device_answers() -> bool:
    """Return whether the GPU that this process uses, if it does, can be waited for."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


class LostDevice:
    """Hooks of one pytest process."""

    def __init__(self, answers: Callable[[], bool] = device_answers) -> None:
        self._answers = answers
        self._lost_in = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if not self._lost_in or not item.get_closest_marker("needs_nvidia"):
            return
        if path := os.environ.get(LEFT):
            with Path(path).open("a") as file:
                file.write(f"{item.path}::{item.nodeid.partition('::')[2]}\n")
        pytest.skip(f"the device was lost in {self._lost_in}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        is_asked = report.failed and item.get_closest_marker("needs_nvidia")
        if is_asked and not self._lost_in and not self._answers():
            self._lost_in = item.nodeid
        return report
