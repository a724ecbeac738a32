"""Check 7: a plugin of an older major passes C1; two majors back is refused, with the fix."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import WheelFolder
from tests.support.source_tree import ROOT

from tokenspeed.errors import PluginError
from tokenspeed.plugins import compatibility, slots
from tokenspeed.plugins.manifest import MANIFEST_NAME, read_manifest

if TYPE_CHECKING:
    from tokenspeed.plugins.manifest import Manifest

FOSSILS = sorted(path for path in (ROOT / "tests" / "fossils").iterdir() if path.is_dir())


@pytest.mark.parametrize("fossil", [path.name for path in FOSSILS])
def test_07_fossils(fossil: str) -> None:
    wheels = WheelFolder(ROOT / "tests" / "fossils" / fossil)
    done = wheels.tokenspeed("plugins", "test", "fossil-one", "--level", "C1", "--json")
    report = json.loads(done.stdout)
    failed = [check for check in report["checks"] if check["outcome"] == "failed"]
    assert (failed, report["problems"]) == ([], [])
    assert done.returncode == 0
    passed = {check["id"] for check in report["checks"] if check["outcome"] == "passed"}
    assert "C0/the-wheel-has-the-files-of-its-record" in passed  # it was not edited
    assert "C1/what-is-built-fits-its-interface[attention/paged]" in passed


def manifest() -> Manifest:
    return read_manifest(FOSSILS[0] / "tokenspeed_fossil_one" / MANIFEST_NAME)


def test_two_majors_back_is_refused_and_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = slots.SLOTS["attention"]
    monkeypatch.setitem(slots.SLOTS, "attention", replace(now, version="3.1"))
    for built_against in ("2.0", "2.9", "3.0", "3.1"):
        fits = replace(manifest(), slots={"attention": built_against})
        compatibility.check_compatible(fits)
    with pytest.raises(PluginError, match=r"attention 1\.0, .* takes 3\.x and 2\.x; install"):
        compatibility.check_compatible(manifest())
    with pytest.raises(PluginError, match=r"slot attention 3\.2, .* has 3\.1; upgrade tokenspeed"):
        compatibility.check_compatible(replace(manifest(), slots={"attention": "3.2"}))
    with pytest.raises(PluginError, match=r"slot attention 4\.0, .* takes 3\.x and 2\.x; upgrade"):
        compatibility.check_compatible(replace(manifest(), slots={"attention": "4.0"}))
