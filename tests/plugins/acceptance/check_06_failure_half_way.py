"""Check 6: a failure in the second of three registrations leaves the registry as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.errors import PluginError
from tokenspeed.plugins import Registry, plan_plugins
from tokenspeed.plugins.manager import load_planned, register_planned

if TYPE_CHECKING:
    from pathlib import Path

BODY = """
class Plugin:
    @hookimpl
    def register_samplers(self, context):
        context.offer(Offer("sampler", "first", lazy("json:loads")))

    @hookimpl
    def register_weight_formats(self, context):
        context.offer(Offer("weight_format", "second", lazy("json:loads")))
        raise RuntimeError("no more")

    @hookimpl
    def register_models(self, context):
        facts = {"architectures": ("Third",)}
        context.offer(Offer("model", "third", lazy("json:loads"), facts=facts))

plugin = Plugin()
"""
SLOTS = 'model = "1.0"\nsampler = "1.0"\nweight_format = "1.0"'


def test_06_failure_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = PluginSpace(tmp_path / "site", monkeypatch)
    space.install("acme", BODY, slots=SLOTS)
    plan = plan_plugins(("acme",))
    (acme,) = (item for item in plan.plugins if item.found.id == "acme")
    registry: Registry = load_planned(plan_plugins(()), role="engine")
    before = registry.dump()
    assert before["offers"]
    with pytest.raises(PluginError, match="register_weight_formats raised RuntimeError: no more"):
        register_planned(registry, acme, role="engine")
    assert registry.dump() == before
