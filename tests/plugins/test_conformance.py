"""The conformance kit passes on every plugin of this tree, and writes its reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.overlay import Overlay
from tests.support.source_tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Overlay:
    environment = Overlay(tmp_path_factory.mktemp("overlay"))
    environment.install(ROOT / "tests" / "sim")
    return environment


LEVELS = {
    "reference": ("C2", 60),
    "sim": ("C3", 40),
    "nvidia": ("C1", 6),
    "amd": ("C1", 6),
    "sdk": ("C1", 10),
}
"""Plugin -> level, and how many checks pass at least: what needs hardware is skipped."""


SLOW = ("reference", "sim")
"""They compute and serve; the others have no hardware here, or nothing to compute."""


@pytest.mark.parametrize(
    "plugin_id",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in LEVELS],
)
def test_it_conforms(overlay: Overlay, plugin_id: str, tmp_path: Path) -> None:
    level, least = LEVELS[plugin_id]
    done = overlay.tokenspeed(
        "plugins", "test", plugin_id, "--level", level, "--report", str(tmp_path), timeout_s=300
    )
    assert done.returncode == 0, done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"]
    assert sum(check["outcome"] == "passed" for check in report["checks"]) >= least
    page = (tmp_path / "report.md").read_text()
    assert page.startswith(f"# Conformance of {plugin_id} 0.1.0: passed\n")
    assert f"| {level} |" in page
