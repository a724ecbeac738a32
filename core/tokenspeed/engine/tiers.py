"""Builds the tiers behind the device: host memory, and the KV store that was asked for."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from tokenspeed.errors import CapacityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.contracts.kv_store import KVStore
    from tokenspeed.executor.transfers import TierTransfers
    from tokenspeed.kv import ArenaLayout

GIB = 1 << 30
LAYER_RANGES = 4
"""Parts of a load: the first layers are there while the last are still on their way."""

FORMAT = "1"
"""Raised when the bytes of a record mean something else."""


def check_tiers(config: EngineConfig) -> None:
    """Check that the settings of the tiers fit together.

    Raises:
        ConfigError: a store without a host tier, tiers without the prefix cache, or a folder that
            cannot be made.
    """
    if config.kv_store and not config.host_kv_gib:
        raise ConfigError(
            f"kv_store is {config.kv_store!r} and host_kv_gib is 0; records pass through host "
            "memory, so set host_kv_gib, such as 1"
        )
    if config.host_kv_gib and not config.prefix_cache:
        raise ConfigError(
            f"host_kv_gib is {config.host_kv_gib} and prefix_cache is off; blocks are found again "
            "by prefix only, so turn prefix_cache on or set host_kv_gib to 0"
        )
    if config.kv_store and config.kv_store_folder:
        _check_folder(config.kv_store_folder)


def _check_folder(folder: str) -> None:
    """Check that a folder can be made, or written to; the store itself is opened much later."""
    there = os.path.abspath(folder)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not (os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)):
        raise ConfigError(
            f"kv_store_folder {folder} cannot be made: {there} is not a folder that this process "
            "may write to; name another"
        )


def host_blocks(config: EngineConfig, layout: ArenaLayout, *, ranks: int = 1) -> int:
    """Return how many physical blocks the host tier has, its unused first one included; 0: none.

    Args:
        layout: of one rank.
        ranks: of the replica, each of which has an equal part of the host memory.
    Raises:
        CapacityError: the memory asked for holds none.
    """
    if not config.host_kv_gib:
        return 0
    num_blocks = int(config.host_kv_gib * GIB) // ranks // layout.physical_bytes
    if num_blocks < 2:
        among = f" among {ranks} ranks" if ranks > 1 else ""
        raise CapacityError(
            f"host_kv_gib {config.host_kv_gib}{among} holds {num_blocks} blocks of "
            f"{layout.physical_bytes:,} bytes, 2 or more are needed; raise it"
        )
    return num_blocks


def write_policy(config: EngineConfig) -> str:
    """Resolve kv_write: a store is only worth what reaches it before the end."""
    if config.kv_write != "auto":
        return config.kv_write
    return "on_commit" if config.kv_store else "on_eviction"


def build_transfers(
    num_blocks: int,
    layout: ArenaLayout,
    arena: torch.Tensor,
    runtime: DeviceRuntime,
    store: KVStore | None,
) -> TierTransfers | None:
    """Allocate the host tier and make its movers; None where there is no tier.

    Args:
        num_blocks: see `host_blocks`.
    """
    from tokenspeed.executor.transfers import TierTransfers

    if num_blocks == 0:
        return None
    return TierTransfers(
        arena,
        _allocate(runtime, num_blocks * layout.physical_bytes),
        layout=layout,
        layer_ranges=LAYER_RANGES,
        store=store,
    )


def cache_namespace(path: Path, layout: ArenaLayout, dtype: str, *, part: str = "") -> str:
    """Return a name that differs wherever cached bytes cannot be exchanged.

    Model files count by name, size and time of change; the bytes are not read.

    Args:
        part: of each block that this rank has, see `part_of`.
    """
    digest = hashlib.blake2b(digest_size=16)
    if part:
        digest.update(part.encode() + b"\n")
    for item in _identity(path, layout, dtype):
        digest.update(repr(item).encode() + b"\n")
    return digest.hexdigest()


def _identity(path: Path, layout: ArenaLayout, dtype: str) -> Iterator[object]:
    yield (FORMAT, LAYER_RANGES, dtype, layout.block_tokens)
    for group in layout.groups:
        yield (group.name, group.kind, group.layers, group.group.fields, group.payload_bytes)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        if file.is_file():
            stat = file.stat()
            yield (file.name, stat.st_size, stat.st_mtime_ns)


def _allocate(runtime: DeviceRuntime, num_bytes: int) -> torch.Tensor:
    """Return pinned memory where the device has any use for it, else plain zero pages."""
    import torch

    if "pinned" in runtime.features:
        pinned: torch.Tensor = runtime.allocate_pinned(num_bytes)  # type: ignore[attr-defined]
        return pinned
    try:
        return torch.zeros(num_bytes, dtype=torch.uint8)
    except RuntimeError as error:
        raise CapacityError(
            f"host tier: {num_bytes / GIB:.2f} GiB cannot be allocated ({error}); lower host_kv_gib"
        ) from error
