"""Every model file is tried on its own: what raises, aborts or hangs breaks itself only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.builtin import MODELS
from tokenspeed.models.health import check_models

if TYPE_CHECKING:
    from pathlib import Path

BODY = """
import sys
NAMES = {names!r}

class Plugin:
    @hookimpl
    def register_models(self, context):
        for name in NAMES:
            target = lazy(__name__ + "." + name + ":EntryClass")
            context.offer(Offer("model", name, target, facts={{"architectures": (name,)}}))

plugin = Plugin()
"""
GOOD = """
class EntryClass:
    architectures = ("{name}",)
    def cache_groups(config): ...
    def load_weights(self, weights): ...
    def forward(self, ids, context): ...
    def compute_logits(self, hidden): ...
"""


@pytest.fixture
def plugin_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginSpace:
    return PluginSpace(tmp_path / "site", monkeypatch)


def install(space: PluginSpace, **files: str) -> None:
    texts = {f"{name}.py": text.format(name=name) for name, text in files.items()}
    space.install("acme", BODY.format(names=sorted(files)), files=texts)


def test_files_that_raise_abort_or_lie_are_findings_and_the_rest_works(
    plugin_space: PluginSpace,
) -> None:
    install(
        plugin_space,
        Aborts="import os\nos.abort()\n",
        Empty="print('noise on stdout')\n",
        Exits="import sys\nsys.exit(3)\n",
        Fine=GOOD,
        Raises="try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise OSError('x') from e\n",
    )
    found = {item.architecture: item for item in check_models(("acme",))}
    assert {name for name, item in found.items() if not item.problem} == {*MODELS, "Fine"}
    assert found["Aborts"].problem == "its import ended the process: SIGABRT"
    assert "SystemExit: 3" in found["Exits"].problem
    assert "has no attribute 'EntryClass'" in found["Empty"].problem
    assert "OSError: x" in found["Raises"].problem
    assert any(cause.startswith("ZeroDivisionError") for cause in found["Raises"].causes)
    assert found["Raises"].pin == "acme/Raises"


def test_a_file_that_hangs_is_stopped_and_named(plugin_space: PluginSpace) -> None:
    install(plugin_space, AHangs="import time\ntime.sleep(60)\n")
    hung, rest = sorted(check_models(("acme",), timeout_s=4.0), key=lambda item: not item.pin)
    assert (hung.architecture, hung.pin) == ("AHangs", "acme/AHangs")
    assert "did not end within 4 s" in hung.problem
    assert rest.problem == "4 s are over: the rest is not tried"


def test_plugins_that_cannot_be_loaded_are_a_finding(plugin_space: PluginSpace) -> None:
    (finding,) = check_models(("no-such-plugin",))
    assert finding.problem.startswith("the models cannot be listed")
    assert "no-such-plugin" in finding.problem
