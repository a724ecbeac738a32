"""The plan of plugins: travels whole, is compared on arrival, and loads what a role needs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.errors import PluginError
from tokenspeed.plugins import load_planned, plan_plugins
from tokenspeed.plugins.plugin_plan import PluginPlan, check_sighting, digest_of, receive_plan

TAIL = '[config.flush]\ntype = "boolean"\ndefault = false'
DEVICE = """
def find():
    return (DeviceFacts("acme", "Acme One", "a1", 2, 1024, {"sinks": True}),)

class Plugin:
    @hookimpl
    def register_models(self, context):
        pass

plugin = Plugin()
"""


def sent(plan: PluginPlan) -> dict[str, object]:
    """Return what arrives at the other end of the control channel."""
    arrived: dict[str, object] = json.loads(json.dumps(plan.to_json()))
    return arrived


def states(plan: PluginPlan, role: str) -> dict[str, str]:
    return {status.id: status.state for status in load_planned(plan, role=role).plugins}


def test_a_plan_arrives_as_it_was_sent(plugin_space: PluginSpace) -> None:
    plugin_space.install("acme", DEVICE, probe='"PACKAGE:find"', tail=TAIL)
    plan = plan_plugins(("acme",), settings=("acme.flush=1",))
    arrived, sighting = receive_plan(sent(plan), process="the engine process")
    assert arrived.to_json() == plan.to_json()
    assert sighting.items == plan.items
    assert digest_of(sighting.items) == plan.digest
    check_sighting(arrived, sighting)
    (acme,) = (item for item in arrived.plugins if item.found.id == "acme")
    assert acme.config == {"flush": True}
    assert acme.devices[0].traits == {"sinks": True}


def test_a_process_loads_what_its_role_needs_and_imports_nothing_else(
    plugin_space: PluginSpace,
) -> None:
    package = plugin_space.install("acme", roles='["worker"]')
    plan = plan_plugins(("acme",))
    assert states(plan, "api")["acme"] == "not for this role"
    assert states(plan, "engine")["reference"] == "registered"
    assert package not in sys.modules
    assert states(plan, "worker")["acme"] == "registered"
    assert package in sys.modules


@pytest.mark.parametrize("change", ["version", "files", "gone"])
def test_another_wheel_on_the_path_is_named_with_both_digests(
    plugin_space: PluginSpace, tmp_path: Path, change: str
) -> None:
    package = plugin_space.install("acme")
    plan = plan_plugins(("acme",))
    if change == "files":
        plugin_space.install("acme", "plugin = None", package=package)
    else:
        (plugin_space.folder / "fake_acme-1.2.3.dist-info").rename(tmp_path / "gone")
    if change == "version":
        plugin_space.install("acme", package=package, version="2.0.0")
    arrived, sighting = receive_plan(sent(plan), process="the engine process (pid 7)")
    with pytest.raises(PluginError) as caught:
        check_sighting(arrived, sighting)
    seen = {"version": "fake-acme 2.0.0", "files": "fake-acme 1.2.3", "gone": "missing"}
    assert caught.value.id == "plan-differs"
    text = str(caught.value)
    for words in ("the engine process (pid 7) sees plugin acme", seen[change], "fake-acme 1.2.3"):
        assert words in text
    assert plan.digest in text
    assert digest_of(sighting.items) in text
    assert plan.digest != digest_of(sighting.items)


def test_another_tokenspeed_is_named_too() -> None:
    plan = plan_plugins(())
    arrived, sighting = receive_plan({**sent(plan), "core": "0.0.1"}, process="the api process")
    with pytest.raises(PluginError, match="sees plugin core as"):
        check_sighting(arrived, sighting)


def test_an_experimental_slot_needs_the_opt_in(plugin_space: PluginSpace) -> None:
    package = plugin_space.install("acme", slots='model = "1.0"\npolicy = "1.0"')
    with pytest.raises(PluginError) as caught:
        plan_plugins(("acme",))
    assert caught.value.exit_code == 3
    assert "policy (since 2026-11)" in str(caught.value)
    assert "--allow-experimental acme" in str(caught.value)
    assert package not in sys.modules
    assert "acme" in plan_plugins(("acme",), experimental=("acme",)).items
    with pytest.raises(PluginError, match=r"allow_experimental names 'acmee'.*'acme'") as caught:
        plan_plugins(("acme",), experimental=("acmee",))
    assert caught.value.id == "plugin-unknown"


def test_our_own_wheels_need_no_opt_in() -> None:
    assert "reference" in plan_plugins(()).items  # fills `operator`


def test_planning_imports_no_plugin(plugin_space: PluginSpace) -> None:
    package = plugin_space.install("acme", DEVICE, probe='"PACKAGE:find"')
    plan_plugins(("acme",))
    assert package not in sys.modules


def test_the_phase_costs_less_than_the_budget(plugin_space: PluginSpace) -> None:
    """Discovery, checks and all our probes: 0.4 s of processor time, with nothing kept."""
    code = """
    import resource
    from tokenspeed.plugins import plan_plugins

    def used(who):
        usage = resource.getrusage(who)
        return usage.ru_utime + usage.ru_stime

    before = used(resource.RUSAGE_SELF)
    plan_plugins(("auto",))
    own = used(resource.RUSAGE_SELF) - before
    print(own + used(resource.RUSAGE_CHILDREN) / 2)  # the two probes run side by side
    """
    seconds = min(float(plugin_space.python(code).stdout) for _ in range(3))
    assert seconds < 0.4, f"{1000 * seconds:.0f} ms"
