"""Loading: what a user names runs or stops the start; what nobody named stays untouched."""

from __future__ import annotations

import dataclasses
import sys

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.errors import ConfigError, PluginError
from tokenspeed.log import LOGGER
from tokenspeed.plugins import Registry, discover, load_plugins, plan_plugins
from tokenspeed.plugins.discovery import FoundPlugin


def states(registry: Registry) -> dict[str, str]:
    return {status.id: status.state for status in registry.plugins}


def load_error(*requested: str, **options: object) -> PluginError:
    with pytest.raises(PluginError) as caught:
        load_plugins(requested, role="engine", **options)  # type: ignore[arg-type]
    return caught.value


def test_a_named_plugin_is_registered_beside_core_and_reference(plugin_space: PluginSpace) -> None:
    plugin_space.install("acme")
    registry = load_plugins(("acme",), role="engine")
    assert states(registry)["acme"] == "registered"
    assert states(registry)["core"] == states(registry)["reference"] == "registered"
    offer = {item.pin: item for item in registry.offers("model")}["acme/acme"]
    assert offer.plugin_version == "1.2.3"


def test_a_missing_wheel_of_ours_is_named() -> None:
    text = str(load_error(available={}))
    assert "'reference' is not installed; installed: none; every start needs its kernels" in text
    assert "install the wheel tokenspeed-reference" in text


@pytest.mark.parametrize("is_installed", [False, True])
def test_a_listing_answers_without_kernels_that_can_run(is_installed: bool) -> None:
    found = discover()["reference"]
    assert found.manifest is not None
    manifest = dataclasses.replace(found.manifest, requires_abi={"torch": ">=99"})
    broken = {"reference": dataclasses.replace(found, manifest=manifest)}
    registry = load_plugins((), role="cli", available=broken if is_installed else {})
    assert states(registry).get("reference") == ("quarantined" if is_installed else None)
    assert "LlamaForCausalLM" in {item.offer.name for item in registry.offers("model")}


def test_a_plugin_that_is_merely_installed_is_not_imported(plugin_space: PluginSpace) -> None:
    package = plugin_space.install("acme", "raise RuntimeError('imported')")
    registry = load_plugins(("auto",), role="engine")
    assert states(registry)["acme"] == "not enabled"
    assert package not in sys.modules


def test_auto_leaves_out_plugins_whose_device_is_missing() -> None:
    registry = load_plugins(("auto",), role="engine")
    reasons = {status.id: status.reason for status in registry.plugins}
    for plugin_id, state in states(registry).items():
        if state == "no device":
            assert "no " + plugin_id.upper() + " device found" in reasons[plugin_id]
    assert states(registry)["sdk"] == "not enabled"


def test_an_unknown_name_is_answered_with_the_nearest(plugin_space: PluginSpace) -> None:
    plugin_space.install("acme")
    error = load_error("acmee")
    assert error.exit_code == 4
    assert "did you mean 'acme'" in str(error)
    assert "installed:" in str(load_error("zzzzzz"))


def test_our_missing_wheel_is_named() -> None:
    error = load_error("nvidia", available={})
    assert "tokenspeed-nvidia" in str(error)
    assert "tokenspeed-reference" in str(load_error(available={}))
    assert states(load_plugins((), role="cli", available={})) == {"core": "registered"}


def test_a_stranger_with_our_id_is_not_trusted(plugin_space: PluginSpace) -> None:
    plugin_space.install("stranger")
    stranger = discover()["stranger"]
    available = {**discover(), "nvidia": _renamed(stranger, "nvidia")}
    error = load_error("nvidia", available=available)
    assert error.exit_code == 3
    assert "belongs to wheel tokenspeed-nvidia" in str(error)
    assert states(load_plugins(("auto",), role="engine", available=available))["nvidia"] == (
        "not enabled"
    )


def _renamed(found: FoundPlugin, plugin_id: str, **changes: str) -> FoundPlugin:
    return dataclasses.replace(found, id=plugin_id, **changes)  # type: ignore[arg-type]


FAILS_WITH_DEVICE = """
def find():
    return (DeviceFacts("acme", "Acme One", "a1", 1, 1024),)

class Plugin:
    @hookimpl
    def register_models(self, context):
        raise RuntimeError("broken wheel")

plugin = Plugin()
"""


@pytest.fixture
def broken_first_party(plugin_space: PluginSpace) -> dict[str, FoundPlugin]:
    """Our own vendor wheel with a device that is there, and a registration that fails."""
    plugin_space.install("broken", FAILS_WITH_DEVICE, probe='"PACKAGE:find"')
    found = discover()
    assert found["broken"].manifest is not None
    manifest = dataclasses.replace(found["broken"].manifest, id="nvidia")
    broken = dataclasses.replace(
        found["broken"], id="nvidia", distribution="tokenspeed-nvidia", manifest=manifest
    )
    return {"reference": found["reference"], "nvidia": broken}


@pytest.mark.parametrize(("fallback", "warnings"), [("warn", 1), ("allow", 0)])
def test_auto_leaves_out_a_plugin_that_fails_with_a_reason(
    broken_first_party: dict[str, FoundPlugin],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fallback: str,
    warnings: int,
) -> None:
    monkeypatch.setattr(LOGGER, "propagate", True)
    with caplog.at_level("WARNING", logger="tokenspeed"):
        registry = load_plugins(
            ("auto",), role="engine", fallback=fallback, available=broken_first_party
        )
    assert len(caplog.records) == warnings
    (status,) = (item for item in registry.plugins if item.id == "nvidia")
    assert status.state == "quarantined"
    assert "RuntimeError: broken wheel" in status.reason


@pytest.mark.parametrize(
    ("find", "state"),
    [
        ("raise PluginError('no card')", "no device"),
        ("return ()", "no device"),
        ("raise RuntimeError('the driver is asleep')", "quarantined"),
        ("import os; os.abort()", "quarantined"),
    ],
)
def test_auto_is_told_when_a_probe_breaks_and_not_when_there_is_no_device(
    plugin_space: PluginSpace,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    find: str,
    state: str,
) -> None:
    monkeypatch.setattr(LOGGER, "propagate", True)
    plugin_space.install("broken", f"def find():\n    {find}\n", probe='"PACKAGE:find"')
    found = discover()
    assert found["broken"].manifest is not None
    manifest = dataclasses.replace(found["broken"].manifest, id="nvidia")
    ours = _renamed(found["broken"], "nvidia", distribution="tokenspeed-nvidia")
    available = {
        "reference": found["reference"],
        "nvidia": dataclasses.replace(ours, manifest=manifest),
    }
    with caplog.at_level("WARNING", logger="tokenspeed"):
        registry = load_plugins(("auto",), role="engine", available=available)
    assert states(registry)["nvidia"] == state
    assert len(caplog.records) == (state == "quarantined")
    if state == "quarantined":
        assert "failed at probe" in str(load_error("auto", fallback="error", available=available))


def test_auto_stops_for_a_plugin_that_fails_when_fallback_is_error(
    broken_first_party: dict[str, FoundPlugin],
) -> None:
    error = load_error("auto", fallback="error", available=broken_first_party)
    assert "failed at load: hook register_models raised RuntimeError: broken wheel" in str(error)


def test_the_check_before_the_start_imports_nothing(plugin_space: PluginSpace) -> None:
    package = plugin_space.install("acme", "raise RuntimeError('imported')")
    plan_plugins(("acme",))
    assert package not in sys.modules
    with pytest.raises(PluginError, match="did you mean 'acme'"):
        plan_plugins(("acmee",))
    with pytest.raises(ConfigError, match="no key 'flush'"):
        plan_plugins(("acme",), settings=("acme.flush=1",))


def test_a_plugin_that_raises_at_import_is_named_with_wheel_version_stage_and_cause(
    plugin_space: PluginSpace,
) -> None:
    plugin_space.install("acme", "raise RuntimeError('boom')")
    error = load_error("acme")
    for word in ("acme", "fake-acme 1.2.3", "failed at load", "RuntimeError: boom"):
        assert word in str(error)
    assert isinstance(error.__cause__, PluginError)
    assert isinstance(error.__cause__.__cause__, RuntimeError)


def test_a_plugin_that_raises_in_its_probe_stops_the_start_quickly(
    plugin_space: PluginSpace,
) -> None:
    body = "def find():\n    raise RuntimeError('no such card')\n" + "plugin = None\n"
    plugin_space.install("acme", body, probe='"PACKAGE:find"')
    error = load_error("acme")
    assert error.exit_code == 4
    assert "failed at probe" in str(error)
    assert "RuntimeError: no such card" in str(error)


def test_a_duplicate_that_was_named_stops_the_start(plugin_space: PluginSpace) -> None:
    plugin_space.install("acme", distribution="acme-one")
    plugin_space.install("acme", distribution="acme-two")
    assert "claimed 2 times" in str(load_error("acme"))
    load_plugins((), role="engine")


def test_a_plugin_for_another_api_is_refused_before_it_is_imported(
    plugin_space: PluginSpace,
) -> None:
    package = plugin_space.install("acme", api='">=2.0"')
    assert "needs plugin API >=2.0, this tokenspeed has 1.0" in str(load_error("acme"))
    assert package not in sys.modules


def test_a_plugin_for_another_role_is_left_out(plugin_space: PluginSpace) -> None:
    package = plugin_space.install("acme", roles='["api"]')
    assert states(load_plugins(("acme",), role="engine"))["acme"] == "not for this role"
    assert package not in sys.modules


def test_settings_are_checked_before_anything_is_imported(plugin_space: PluginSpace) -> None:
    tail = '[config.flush]\ntype = "boolean"\ndefault = false'
    package = plugin_space.install("acme", tail=tail)
    with pytest.raises(ConfigError, match="did you mean 'flush'"):
        load_plugins(("acme",), role="engine", settings=("acme.flus=1",))
    assert package not in sys.modules


def test_settings_reach_the_hooks(plugin_space: PluginSpace) -> None:
    body = """
    seen = []
    class Plugin:
        @hookimpl
        def register_models(self, context):
            seen.append((context.plugin_id, context.role, dict(context.config)))
    plugin = Plugin()
    """
    tail = '[config.flush]\ntype = "boolean"\ndefault = false'
    package = plugin_space.install("acme", body, tail=tail)
    load_plugins(("acme",), role="engine", settings=("acme.flush=1",))
    assert sys.modules[package].seen == [("acme", "engine", {"flush": True})]


def test_an_offer_that_the_manifest_states_must_be_made(plugin_space: PluginSpace) -> None:
    plugin_space.install("acme", tail='[[offers]]\nslot = "model"\nname = "promised"')
    assert "states offer model/promised" in str(load_error("acme"))


def test_loading_twice_gives_equal_registries(plugin_space: PluginSpace) -> None:
    plugin_space.install("acme")
    first, second = (load_plugins(("acme",), role="engine").dump() for _ in range(2))
    assert first == second
    assert load_plugins(("acme", "sdk"), role="engine").dump() == (
        load_plugins(("sdk", "acme"), role="engine").dump()
    )
