"""A fresh folder of plugins for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.plugin_wheels import PluginSpace


@pytest.fixture
def plugin_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginSpace:
    return PluginSpace(tmp_path / "site", monkeypatch)
