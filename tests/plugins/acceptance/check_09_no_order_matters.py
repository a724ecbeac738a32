"""Acceptance 9: who arrives when decides nothing: installs, entry points, flags, candidates."""

from __future__ import annotations

import sys
from random import Random
from typing import TYPE_CHECKING, Any

from tests.support.choices import some_offers, some_request
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.config.schema import EngineConfig
from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.registration import Offer
from tokenspeed.engine.rules import rules_of
from tokenspeed.errors import CapabilityError, ConfigError
from tokenspeed.kernels import select
from tokenspeed.plugins import discover
from tokenspeed.plugins.manager import load_planned
from tokenspeed.plugins.planning import plan_plugins
from tokenspeed.plugins.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CASES = 1000


INSTALLS = 60
BODY = """
class Plugin:
    @hookimpl
    def register_attention_backends(self, context):
        for name in ("x", "y"):
            context.offer(Offer("attention", name, dict, "PORTABLE", {"dtype": ("float32",)}))

plugin = Plugin()
"""


def test_09_no_order_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = Random().randrange(1 << 32)
    random = Random(seed)
    check_installs(random, tmp_path, monkeypatch, seed)
    for case in range(CASES):
        offers, request = some_offers(random), some_request(random)
        flags = some_flags(random, offers)
        evidence = {
            item.pin: random.choice((1e-6, 2e-6)) for item in offers if random.random() < 0.7
        }
        told = [
            outcome(shuffled(random, offers), request, shuffled_flags(random, flags), evidence)
            for _ in range(3)
        ]
        assert told[0] == told[1] == told[2], (seed, case)


def check_installs(
    random: Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Find, plan and load the same wheels, a folder each, in one order after the other."""
    space = PluginSpace(tmp_path / "site", monkeypatch)
    folders = [tmp_path / name for name in ("a", "b", "c", "twin", "stale", "broken")]
    for folder, plugin_id in zip(folders, ("a", "b", "c", "c2", "c2", "d"), strict=True):
        space.install(
            plugin_id, BODY, folder=folder, slots='attention = "1.0"', version=folder.name
        )
    (folders[-1] / "fake_d-broken.dist-info" / "entry_points.txt").write_text(
        "[tokenspeed.plugins]\nd\n"
    )
    others, told = list(sys.path), []
    for case in range(INSTALLS):
        paths = [str(folder) for folder in shuffled(random, folders)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", [*paths, *others] if case % 2 else [*others, *paths])
            told.append(installed_outcome(shuffled(random, "abc")))
        assert told[-1] == told[0], (seed, case, paths)
    found, _, _, record = told[0]
    assert "claimed 2 times" in found["c2"].problem
    assert found["d"].problem_id == "plugin-unlocatable"
    assert record["winner"] == "a/x"


def installed_outcome(requested: list[str]) -> tuple[Any, ...]:
    """Return everything that a start makes of what is installed."""
    found = discover()
    plan = plan_plugins(tuple(requested))
    registry = load_planned(plan, role="engine")
    request = {"device": "cpu", "dtype": "float32"}
    mine = [item for item in registry.offers("attention") if item.plugin_id in requested]
    return found, plan, registry.dump(), select("attention", mine, request).record


def outcome(
    offers: list[RegisteredOffer[Offer]],
    request: dict[str, object],
    flags: dict[str, tuple[str, ...]],
    evidence: dict[str, float],
) -> object:
    """Install plugin by plugin in the order of `offers`, and choose."""
    registry = Registry()
    for plugin_id in dict.fromkeys(item.plugin_id for item in offers):
        staged = [("attention", item.offer) for item in offers if item.plugin_id == plugin_id]
        registry.commit(plugin_id, "1.0", staged)
    try:
        rules = rules_of(EngineConfig(**flags))  # type: ignore[arg-type]
        return select(
            "attention",
            registry.offers("attention"),
            request,
            pin=rules.pins.get("attention", "auto"),
            preferences=rules.preferences,
            forced=rules.forced,
            fallback="allow",
            evidence=evidence,
        ).record
    except (CapabilityError, ConfigError) as error:
        return str(error)


def some_flags(random: Random, offers: list[RegisteredOffer[Offer]]) -> dict[str, tuple[str, ...]]:
    pins = ["linear.dense=a/x"]
    if offers and random.random() < 0.3:
        pins.append(f"attention={random.choice(offers).pin}")
    return {
        "prefer": ("graph_safe=true", "vendor=acme", "window=128"),
        "unsafe_force": ("trait.sinks", "trait.window") if random.random() < 0.5 else (),
        "pins": tuple(pins),
    }


def shuffled(random: Random, items: Any) -> list[Any]:
    return random.sample(list(items), len(items))


def shuffled_flags(random: Random, flags: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    names = shuffled(random, flags)
    return {name: tuple(shuffled(random, flags[name])) for name in names}
