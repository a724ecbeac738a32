"""Kept probe answers: used while nothing changed, forgotten when anything did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.errors import PluginError
from tokenspeed.plugins import discover, load_plugins, probe_cache
from tokenspeed.plugins.probe_cache import probe_key

COUNTING = """
class Plugin:
    @hookimpl
    def register_models(self, context):
        pass

plugin = Plugin()

def find():
    with open({counter!r}, "a") as file:
        file.write("x")
    {end}
"""
FOUND = 'return (DeviceFacts("acme", "Acme One", "a1", 2, 1024, {"sinks": True}),)'


class Counted:
    """An installed plugin that counts how often it was probed."""

    def __init__(self, space: PluginSpace, file: Path, end: str) -> None:
        self.file = file
        file.write_text("")
        body = COUNTING.format(counter=str(file), end=end)
        self.package = space.install("acme", body, probe='"PACKAGE:find"')

    def probes(self) -> int:
        return len(self.file.read_text())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "boot_id").write_text("first boot")
    monkeypatch.setattr(probe_cache, "BOOT_ID", tmp_path / "boot_id")
    monkeypatch.setattr(probe_cache, "MODULES", tmp_path / "modules")
    monkeypatch.setattr(probe_cache, "DEVICES", tmp_path / "dev")
    (tmp_path / "modules" / "acme").mkdir(parents=True)
    (tmp_path / "modules" / "acme" / "version").write_text("535.1")
    (tmp_path / "dev").mkdir()
    return tmp_path


def devices() -> tuple[object, ...]:
    registry = load_plugins(("acme",), role="engine")
    (status,) = (item for item in registry.plugins if item.id == "acme")
    return status.devices


def test_a_found_device_is_probed_once_a_boot(plugin_space: PluginSpace, own_cache: Path) -> None:
    acme = Counted(plugin_space, own_cache / "count", FOUND)
    first = devices()
    assert devices() == first != ()
    assert acme.probes() == 1


@pytest.mark.parametrize("change", ["boot", "driver", "node", "variable", "wheel", "file"])
def test_whatever_the_answer_depends_on_makes_it_new(
    plugin_space: PluginSpace, own_cache: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    acme = Counted(plugin_space, own_cache / "count", FOUND)
    devices()
    if change == "boot":
        (own_cache / "boot_id").write_text("second boot")
    elif change == "driver":
        (own_cache / "modules" / "acme" / "version").write_text("535.2")
    elif change == "node":
        (own_cache / "dev" / "acme0").touch()
    elif change == "variable":
        monkeypatch.setenv("ACME_VISIBLE_DEVICES", "1")
    elif change == "wheel":
        record = plugin_space.folder / "fake_acme-1.2.3.dist-info" / "RECORD"
        record.write_text(record.read_text() + "more.py,sha256=x,1\n")
    else:
        (kept,) = (own_cache / "cache" / "probes").iterdir()
        kept.write_text("{")
    devices()
    assert acme.probes() == 2


@pytest.mark.parametrize("end", ["raise RuntimeError('asleep')", "raise PluginError('none')"])
def test_a_failure_is_not_kept(plugin_space: PluginSpace, own_cache: Path, end: str) -> None:
    acme = Counted(plugin_space, own_cache / "count", end)
    for _ in range(2):
        with pytest.raises(PluginError):
            devices()
    assert acme.probes() == 2


def test_an_editable_install_is_always_probed(plugin_space: PluginSpace, own_cache: Path) -> None:
    Counted(plugin_space, own_cache / "count", FOUND)
    found = discover()["acme"]
    assert probe_key(found.info, "a:b") != ""
    (found.info / "direct_url.json").write_text(json.dumps({"dir_info": {"editable": True}}))
    assert probe_key(found.info, "a:b") == ""


def test_a_cache_that_cannot_be_written_costs_nothing_else(
    plugin_space: PluginSpace, own_cache: Path
) -> None:
    acme = Counted(plugin_space, own_cache / "count", FOUND)
    (own_cache / "cache").write_text("a file where the folder should be")
    assert devices() == devices()
    assert acme.probes() == 2
