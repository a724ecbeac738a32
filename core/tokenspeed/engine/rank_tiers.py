"""A rank's tiers: the same blocks on every rank, each rank with its own part of their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.engine.checked_store import CheckedStore
from tokenspeed.engine.ranks.place import degrees_of, mesh_text
from tokenspeed.engine.tiers import build_transfers, cache_namespace

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.engine.choices import Choices
    from tokenspeed.engine.rank_build import RankParts
    from tokenspeed.engine.ranks.place import Place
    from tokenspeed.engine.sizes import EngineSizes
    from tokenspeed.engine.store_guard import GuardedStore
    from tokenspeed.executor.transfers import TierTransfers


def build_tiers(
    config: EngineConfig,
    choices: Choices,
    parts: RankParts,
    path: Path,
    place: Place,
    sizes: EngineSizes,
    runtime: DeviceRuntime,
) -> tuple[GuardedStore | None, TierTransfers | None]:
    """Open this rank's store and make its movers; None where there is no such tier.

    Args:
        path: of the model.
    Raises:
        TokenSpeedError: a store that is not offered, or no memory for the host tier.
    """
    part = part_of(config, place)
    namespace = cache_namespace(path, parts.layout, sizes.dtype, part=part)
    store = choices.kv_store(namespace, rank=place.rank, ranks=place.world)
    checked = None if store is None else CheckedStore(store)
    transfers = build_transfers(parts.host_blocks, parts.layout, parts.storage, runtime, checked)
    return store, transfers


def part_of(config: EngineConfig, place: Place) -> str:
    """Return which part of every block a rank has; "": all of it."""
    if place.world == 1:
        return ""
    return f"rank {place.rank} of {mesh_text(degrees_of(config))}"
