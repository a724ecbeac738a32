"""Schedulers of small pools, for tests that drive them by hand."""

from __future__ import annotations

from typing import Any

from tokenspeed.scheduler import GroupSpec, Scheduler, SchedulerConfig

FULL: dict[str, Any] = {"name": "full", "packing": 2}


def make_scheduler(*groups: dict[str, Any], **settings: Any) -> Scheduler:
    """Make one with 64 physical blocks and steps of 64 tokens.

    Args:
        groups: fields of each GroupSpec; FULL when left out.
        settings: of SchedulerConfig, beside the groups.
    """
    defaults: dict[str, Any] = {
        "block_tokens": 16,
        "num_physical_blocks": 65,
        "max_running": 4,
        "max_waiting": 64,
        "max_step_tokens": 64,
        "max_context_tokens": 1024,
    }
    specs = [GroupSpec(**group) for group in groups or (FULL,)]
    return Scheduler(SchedulerConfig(groups=specs, **{**defaults, **settings}))
