"""What holds for the whole suite.

Hook calls after the freeze raise, the log is left alone, and a module's threads and processes end
with it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.leftovers import left_since, present
from tests.support.lost_device import LostDevice

from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Iterator

os.environ["TOKENSPEED_TEST_STRICT"] = "1"
if not (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
    os.environ["TRITON_INTERPRET"] = "1"  # read by triton when it is imported, whoever does so


def pytest_configure(config: pytest.Config) -> None:
    """Keep a lost device from failing more than the test that lost it."""
    config.pluginmanager.register(LostDevice())


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a module that leaves a thread or a child process."""
    before = present()
    yield
    assert left_since(before) == [], "this module's tests leave threads or processes behind"


@pytest.fixture(autouse=True)
def logging_is_as_it_was() -> Iterator[None]:
    """Undo what a command that ran in this process did to the logger."""
    before = (LOGGER.level, LOGGER.propagate, list(LOGGER.handlers))
    yield
    LOGGER.level, LOGGER.propagate, LOGGER.handlers[:] = before
