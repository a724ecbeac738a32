"""Configurations of a scheduler for random operations, each from one seed."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

from tokenspeed.scheduler import GroupSpec, Scheduler, SchedulerConfig

BLOCK_TOKENS = 16
MIXES = (
    ("full",),
    ("full", "full"),
    ("full", "window"),
    ("full", "state"),
    ("full", "window", "state", "state"),
)


@dataclass(slots=True)
class Scenario:
    """What one seed chose.

    Args:
        is_ample: the pool is never short, and a block is found again wherever it lies.
        fail_share: share of moves between the tiers that fail.
        has_limits: tenants get floors and caps, at any time.
    """

    settings: dict[str, Any]
    groups: list[dict[str, Any]]
    is_ample: bool
    max_live: int
    fail_share: float
    has_limits: bool = False

    @property
    def has_state(self) -> bool:
        """Say whether a group keeps states."""
        return any(group["kind"] == "state" for group in self.groups)

    def new_scheduler(self) -> Scheduler:
        """Build a fresh scheduler of this scenario."""
        groups = [GroupSpec(**group) for group in self.groups]
        return Scheduler(SchedulerConfig(groups=groups, **self.settings))


def choose_scenario(chance: random.Random) -> Scenario:
    """Choose sizes: pools from the smallest possible to one that is never short."""
    groups = _choose_groups(chance)
    context = chance.choice([40, 96, 200])
    settings: dict[str, Any] = {
        "block_tokens": BLOCK_TOKENS,
        "max_running": chance.choice([1, 2, 4, 8, 8]),
        "max_waiting": chance.choice([2, 64, 64, 64]),
        "max_step_tokens": chance.choice([1, 5, 16, 33, 64, 64, 512]),
        "max_context_tokens": context,
        "depth": chance.choice([0, 1]),
        "prefix_cache": chance.random() < 0.9,
        "hash_seed": chance.choice([0, 7]),
        "state_cache_share": chance.choice([0.0, 0.3, 0.6, 1.0]),
        "max_prefill_steps": chance.choice([0, 1, 3]),
        "min_tps_per_user": chance.choice([0, 0, 0, 0, 50, 2000]),
        "max_queue_us": chance.choice([0, 0, 0, 300]),
        "ageing_us": chance.choice([40, 1_000_000]),
        "max_sessions": chance.choice([1, 3, 8]),
        "record_events": chance.random() < 0.3,
        **_choose_tiers(chance),
    }
    blocks = sum(-(-context // BLOCK_TOKENS // group["packing"]) for group in groups)
    share = chance.choice([0.0, 0.0, 1.0, 1.3, 1.6, 2.5, 60.0 * (settings["max_running"] + 1)])
    settings["num_physical_blocks"] = max(2, int(blocks * share))
    is_ample = share >= 60 and all(group["kind"] != "state" for group in groups)
    if is_ample or not settings["prefix_cache"]:
        settings |= {"host_blocks": 0, "write_policy": "none", "store": False}
    scenario = Scenario(
        settings,
        groups,
        is_ample=is_ample,
        max_live=chance.choice([3, 8, 24]),
        fail_share=chance.choice([0.0, 0.1, 0.4]),
    )
    _raise_to_minimum(scenario, extra=chance.choice([0, 0, 2, 6]))
    is_countable = all(group["kind"] == "full" for group in groups)
    scenario.has_limits = is_countable and not is_ample and chance.random() < 0.7
    return scenario


def _choose_groups(chance: random.Random) -> list[dict[str, Any]]:
    groups = []
    for index, kind in enumerate(chance.choice(MIXES)):
        group: dict[str, Any] = {
            "name": f"{kind}{index}",
            "kind": kind,
            "packing": chance.choice([1, 1, 2, 3, 4]),
            "share_tokens": chance.choice([1, 1, 4, 16]) if index == 0 else 1,
        }
        if kind == "window":
            group["window"] = chance.choice([1, 16, 20, 50])
        groups.append(group)
    return groups


def _choose_tiers(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.35:
        return {"host_blocks": 0}
    return {
        "host_blocks": chance.choice([2, 4, 12, 40, 40]),
        "write_policy": chance.choice(["none", "selective", *["on_eviction", "on_commit"] * 2]),
        "min_reuse": chance.choice([1, 2]),
        "store": chance.random() < 0.5,
        "layer_ranges": chance.choice([1, 2, 3]),
        "copy_cost_tokens": chance.choice([0.0, 0.0, 1.0, 8.0]),
    }


def _raise_to_minimum(scenario: Scenario, *, extra: int) -> None:
    """Take the smallest pool that the scheduler accepts where the one chosen is too small."""
    try:
        scenario.new_scheduler()
    except ValueError as error:
        found = re.search(r"num_physical_blocks is \d+; allowed: (\d+) or more", str(error))
        if found is None:
            raise
        scenario.settings["num_physical_blocks"] = int(found.group(1)) + extra
        scenario.new_scheduler()
