"""A failed step names the plugin whose code raised, and nobody where it was none's."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.plugin_wheels import PluginSpace
from tests.support.scripted import write_scripted_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.engine.blame import Blame
from tokenspeed.plugins import load_plugins

if TYPE_CHECKING:
    from pathlib import Path

PLUGIN = """
class Plugin:
    @hookimpl
    def register_models(self, context):
        context.offer(Offer("model", "acme", lazy("json:loads"), facts={"architectures": ("A",)}))

plugin = Plugin()

def kernel(x):
    return int(x)
"""


def test_the_innermost_frame_of_a_plugin_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = PluginSpace(tmp_path / "site", monkeypatch)
    package = space.install("acme", PLUGIN)
    registry = load_plugins(("acme",), role="engine")
    blame = Blame(registry.plugins)
    kernel = importlib.import_module(package).kernel
    with pytest.raises(ValueError, match="no number") as caught:
        kernel("no number")
    said = blame.place_of(caught.value)
    assert said.startswith(f" in plugin acme 1.2.3 ({package}/__init__.py:")


def test_code_of_no_plugin_is_not_blamed_on_one() -> None:
    blame = Blame(load_plugins((), role="engine").plugins)
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 // 0
    assert blame.place_of(caught.value) == ""


def test_an_answer_that_failed_with_its_step_names_the_plugin(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", raise_on_token=7)
    with LLM(str(model), **TEST_SETTINGS) as llm:
        (output,) = llm.generate([[7]], SamplingParams(max_tokens=2))
    assert output.finish_reason == "error"
    assert output.error is not None
    assert "raised RuntimeError('scripted failure on token 7') in plugin sdk" in output.error
    assert "testkit/scripted.py:" in output.error
