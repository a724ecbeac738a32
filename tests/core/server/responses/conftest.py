"""One application for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.apps import App

from tokenspeed.server.responses.store import ResponseStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> App:
    """Says "Hello." unless it is told otherwise; stores up to 1 MiB of responses."""
    return App(tmp_path, responses=ResponseStore(tmp_path / "responses", max_bytes=1 << 20))
