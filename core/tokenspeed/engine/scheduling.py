"""What decides in an engine, made from its settings and its cache: scheduler and tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.engine.sizes import slots_each
from tokenspeed.engine.tenant_file import read_tenants
from tokenspeed.engine.tenants import tenants_of
from tokenspeed.engine.tiers import LAYER_RANGES, write_policy
from tokenspeed.errors import ConfigError, RequestError
from tokenspeed.scheduler import Scheduler
from tokenspeed.scheduler.partitioned import PartitionedScheduler
from tokenspeed.scheduler.record import scheduler_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.engine.sizes import EngineSizes
    from tokenspeed.engine.tenants import Tenants
    from tokenspeed.kv import ArenaLayout


def scheduler_settings(
    config: EngineConfig, layout: ArenaLayout, sizes: EngineSizes, *, host_blocks: int
) -> dict[str, Any]:
    """Return what an engine's schedulers are made from, each of them, as `--record` keeps it."""
    groups = [
        {
            "name": group.name,
            "kind": group.kind,
            "packing": group.packing,
            "share_tokens": group.group.share_tokens,
            "window": group.group.window,
            # Without drafts nothing is taken back, so any way will do.
            "speculation": "replay" if group.group.speculation == "replay" else "rows_per_position",
        }
        for group in layout.groups
    ]
    return {
        "block_tokens": sizes.block_tokens,
        "groups": groups,
        "num_physical_blocks": layout.num_physical_blocks,
        "max_running": slots_each(config),
        "max_waiting": -(-config.max_waiting // config.dp),
        "max_step_tokens": max(sizes.max_step_tokens // config.dp, slots_each(config)),
        "max_context_tokens": sizes.max_context_tokens,
        "depth": config.depth,
        "prefix_cache": config.prefix_cache,
        "state_cache_share": config.state_cache_share,
        "host_blocks": host_blocks,
        "write_policy": write_policy(config) if config.host_kv_gib else "none",
        "min_reuse": config.kv_write_min_reuse,
        "store": bool(config.kv_store),
        "layer_ranges": LAYER_RANGES if config.host_kv_gib else 1,
        "kv_events": bool(config.kv_events) or config.replicas > 1,
        "retain_share": config.retain_share,
        "max_queue_us": int(config.max_queue_s * 1e6),
        "min_tps_per_user": config.min_tps_per_user,
        "max_prefill_steps": config.max_prefill_steps,
        "record_events": bool(config.record),
    }


def make_scheduler(
    config: EngineConfig, settings: Mapping[str, Any], layout: ArenaLayout
) -> Scheduler:
    """Return what decides: one scheduler, or one for each partition of attention, seen as one."""
    if config.dp == 1:
        return Scheduler(scheduler_config(settings))
    joined: Any = PartitionedScheduler(
        config.dp,
        lambda: scheduler_config({**settings, "kv_events": config.prefix_cache}),
        slots_each=settings["max_running"],
        block_tokens=settings["block_tokens"],
        groups=tuple((group.kind, group.group.window) for group in layout.groups),
        tells_events=settings["kv_events"],
    )
    return joined  # type: ignore[no-any-return]


def make_tenants(config: EngineConfig, scheduler: Scheduler, layout: ArenaLayout) -> Tenants:
    """Return the tenants with the figures of the settings.

    Raises:
        ConfigError: the file, or a figure in it, is not as needed; or the model's cache cannot be
            counted by tenant.
    """
    tenants = tenants_of(scheduler, layout)
    try:
        for name, figures in read_tenants(config.tenants).items():
            tenants.change(name, figures.share(config.replicas), now_us=0)
    except RequestError as error:
        raise ConfigError(f"tenants {config.tenants!r}: {error}") from None
    return tenants
