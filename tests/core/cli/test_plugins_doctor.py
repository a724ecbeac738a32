"""`plugins doctor`: each kind of illness is found, named and has a fix; nobody else suffers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.plugin_wheels import WheelFolder, write_metadata
from tests.support.vendor_wheels import install_vendors

MODELS = """
class Good:
    architectures = ("Good",)

    def cache_groups(self): ...

    load_weights = forward = compute_logits = cache_groups

class Plugin:
    @hookimpl
    def register_models(self, context):
        for name, target in (("Good", "PACKAGE:Good"), ("Bad", "PACKAGE.broken:EntryClass")):
            facts = {"architectures": (name,)}
            context.offer(Offer("model", name, lazy(target), facts=facts))

plugin = Plugin()
"""


@pytest.fixture
def wheels(tmp_path: Path) -> WheelFolder:
    return WheelFolder(tmp_path / "site")


def examined(wheels: WheelFolder, *ids: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code and a finding of each check, one that is a problem if there is any."""
    result = wheels.tokenspeed("plugins", "doctor", *ids, "--json")
    assert result.stdout, result.stderr
    findings = json.loads(result.stdout)["findings"]
    findings.sort(key=lambda item: item["verdict"] == "problem")
    return result.returncode, {item["check"]: item for item in findings}


def test_a_model_module_that_raises_at_import_is_reported_and_the_others_are_well(
    wheels: WheelFolder,
) -> None:
    broken = {"broken.py": "raise ZeroDivisionError('half done')"}
    package = "fake_models_for_doctor"
    body = MODELS.replace("PACKAGE", package)
    wheels.install("acme", body, package=package, files=broken)
    code, found = examined(wheels, "acme")
    assert code == 1
    assert found["model"]["verdict"] == "problem"
    assert "Bad cannot be used" in found["model"]["text"]
    assert "ZeroDivisionError: half done" in found["model"]["text"]
    assert "broken.py:1" in found["model"]["text"]
    assert found["loads"]["verdict"] == "ok"


@pytest.mark.parametrize(
    ("body", "probe", "check", "words"),
    [
        ("raise RuntimeError('no')\n", "", "loads", "importing"),
        ("import os\nos.abort()\n", "", "loads", "ended its process"),
        ("def find():\n    import os; os.abort()\nplugin = 1\n", "find", "device", "SIGABRT"),
        ("def find():\n    raise OSError('bus')\nplugin = 1\n", "find", "device", "OSError: bus"),
    ],
)
def test_what_kills_a_process_is_a_finding_with_a_fix(
    wheels: WheelFolder, body: str, probe: str, check: str, words: str
) -> None:
    manifest = {"probe": f'"PACKAGE:{probe}"'} if probe else {}
    wheels.install("acme", body, **manifest)
    code, found = examined(wheels, "acme")
    assert code == 1
    assert found[check]["verdict"] == "problem"
    assert words in found[check]["text"]
    assert found[check]["fix"]


def test_a_missing_native_library_and_a_duplicate_are_found(wheels: WheelFolder) -> None:
    wheels.install("acme", files={"_native.so": b"no library at all"})
    code, found = examined(wheels, "acme")
    assert code == 1
    assert found["library"]["verdict"] == "problem"
    assert "_native.so" in found["library"]["text"]
    write_metadata(wheels.folder, "twin", "1.0", "acme = elsewhere:plugin")
    code, found = examined(wheels, "acme")
    assert code == 1
    assert found["installed"]["id"] == "plugin-duplicate"
    assert str(wheels.folder) in found["installed"]["text"]


def test_a_strangers_code_runs_only_when_it_is_named(wheels: WheelFolder, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    body = f"open({str(marker)!r}, 'w').close()\ndef find(): return ()\nplugin = 1\n"
    wheels.install("acme", body, probe='"PACKAGE:find"')
    result = wheels.tokenspeed("plugins", "doctor", "--json")
    findings = json.loads(result.stdout)["findings"]
    (device,) = (f for f in findings if f["plugin"] == "acme" and f["check"] == "device")
    assert device["verdict"] == "note"
    assert "not run" in device["text"]
    assert not marker.exists()
    examined(wheels, "acme")
    assert marker.exists()


def test_a_device_plugin_says_its_rung_and_what_falls_back(wheels: WheelFolder) -> None:
    install_vendors(wheels)
    code, found = examined(wheels, "hopper")
    assert code == 0
    assert found["rung"]["text"].startswith("R1 (by its manifest); next is R2")
    assert "sampler" in found["falls back"]["text"]
    assert "linear.dense" in found["falls back"]["text"]
    assert "attention, " not in found["falls back"]["text"]
    _, found = examined(wheels, "reference")
    assert found["rung"]["text"].startswith("R3 (loaded); next is R4")


def test_an_unknown_id_is_answered_with_the_nearest(wheels: WheelFolder) -> None:
    result = wheels.tokenspeed("plugins", "doctor", "referense")
    assert result.returncode == 4
    assert "did you mean 'reference'" in result.stderr
