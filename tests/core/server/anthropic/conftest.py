"""One application for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.apps import App

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> App:
    """Says "Hello." unless it is told otherwise."""
    return App(tmp_path)
