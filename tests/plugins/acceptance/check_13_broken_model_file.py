"""Check 13: one model module that raises at import breaks itself only, and is reported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.plugin_wheels import PluginSpace
from tests.support.scripted import write_scripted_model
from tests.support.server import run_cli

from tokenspeed import LLM
from tokenspeed.models.health import check_models

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

BODY = """
class Plugin:
    @hookimpl
    def register_models(self, context):
        target = lazy(__name__ + ".model:EntryClass")
        facts = {"architectures": ("BrokenForCausalLM",)}
        context.offer(Offer("model", "broken", target, facts=facts))

plugin = Plugin()
"""
BROKEN = """
try:
    import a_library_nobody_has
except ImportError as error:
    raise RuntimeError("this model needs its library") from error
"""


def test_13_broken_model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = PluginSpace(tmp_path / "site", monkeypatch)
    space.install("acme", BODY, files={"model.py": BROKEN})

    # every other architecture can be imported
    findings = check_models(("acme", "sdk"))
    assert len(findings) > 8
    (broken,) = [item for item in findings if item.problem]
    assert broken.pin == "acme/broken"
    assert any("a_library_nobody_has" in cause for cause in broken.causes)

    # doctor reports it, with the first cause, and ends with "problems"
    doctor = run_cli("plugins", "doctor", "acme", "--json")
    assert doctor.returncode == 1, doctor.stderr
    told = json.loads(doctor.stdout)["findings"]
    (finding,) = [item for item in told if item["verdict"] == "problem"]
    assert (finding["plugin"], finding["check"]) == ("acme", "model")
    assert "BrokenForCausalLM cannot be used" in finding["text"]
    assert "No module named 'a_library_nobody_has'" in finding["text"]
    assert finding["fix"]

    # with the plugin loaded another architecture answers
    fine = write_scripted_model(tmp_path / "fine", script="Hello.")
    with LLM(str(fine), plugins=("acme", "sdk"), kv_gib=0.001) as llm:
        assert llm.generate(["Hi"])[0].text == "Hello."

    # asking for the broken one says why, down to the first cause
    asked = write_scripted_model(tmp_path / "asked", architectures=["BrokenForCausalLM"])
    refused = run_cli("generate", str(asked), "--plugins", "acme,sdk", "--prompt", "Hi")
    assert refused.returncode == 4
    assert "failed at load of model BrokenForCausalLM: RuntimeError: this model" in refused.stderr
    assert "other architectures are not affected" in refused.stderr
    assert "caused by ModuleNotFoundError: No module named 'a_library_nobody_has'" in refused.stderr
    assert "Traceback" not in refused.stderr
