"""The speculator that docs/speculation.md shows loads by name and drafts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.plugin_wheels import PluginSpace
from tests.support.scripted import write_scripted_model

from tokenspeed import LLM, SamplingParams

PAGE = Path(__file__).parents[2] / "docs" / "speculation.md"


def test_the_speculator_of_the_page_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (body,) = (block for block in blocks if "class Copier" in block)
    PluginSpace(tmp_path / "site", monkeypatch).install("acme", body, slots='speculator = "1.0"')
    text = "sixteen letters." * 8
    model = write_scripted_model(tmp_path / "model", script=text)
    settings = {**TEST_SETTINGS, "plugins": ("sdk", "acme"), "speculator": "acme/copier"}
    with LLM(str(model), **settings) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=len(text))
        (output,) = llm.generate([text[:16]], params)
        stats = llm.stats()
    assert output.text == text
    assert stats.accepted_tokens > 90
