"""Folders for the acceptance checks: wheels that only children see, and a model nobody may read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import WheelFolder

if TYPE_CHECKING:
    from pathlib import Path


pytest.register_assert_rewrite("tests.plugins.acceptance")


@pytest.fixture
def wheels(tmp_path: Path) -> WheelFolder:
    return WheelFolder(tmp_path / "site")


@pytest.fixture
def unread_model(tmp_path: Path) -> Path:
    """A model folder whose weights are a pipe that nobody writes: opening it blocks for ever."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    os.mkfifo(folder / "model.safetensors")
    return folder
