"""Tiny checkpoints, made once a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of this session's checkpoints."""
    return tmp_path_factory.mktemp("checkpoints")
