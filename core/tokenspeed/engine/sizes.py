"""Resolves settings left to "auto": dtype, context, step and cache sizes. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.checkpoint.json_file import shown
from tokenspeed.config.load import replace_settings
from tokenspeed.config.schema import MAX_CONTEXT_TOKENS
from tokenspeed.errors import CapacityError, ConfigError
from tokenspeed.kv.geometry import unit_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.model import CacheGroup
    from tokenspeed.kv.layout import ArenaLayout, GroupLayout

GIB = 1 << 30
CPU = "cpu"
CONTEXTS_IN_CACHE = 4
SNAPSHOTS_OF_A_CONTEXT = 3
MEMORY_SHARE = 0.4
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """Resolved settings of one engine; tokens unless the name says otherwise."""

    dtype: str
    block_tokens: int
    max_context_tokens: int
    max_step_tokens: int
    vocab_size: int
    num_heads: int


def resolve_sizes(
    config: EngineConfig, model_config: Mapping[str, Any], *, device_kind: str
) -> EngineSizes:
    """Fill in what the user left open.

    Raises:
        ConfigError: the model's config lacks a number, or a setting exceeds the model's own.
    """
    own_context_tokens = _number(model_config, "max_position_embeddings")
    max_context_tokens = config.max_context_tokens or own_context_tokens
    longest_tokens = min(own_context_tokens, MAX_CONTEXT_TOKENS)
    if not 1 < max_context_tokens <= longest_tokens:
        raise ConfigError(
            f"max_context_tokens is {max_context_tokens}, allowed is 2 to {longest_tokens} "
            f"(the model's max_position_embeddings is {own_context_tokens}); set it lower"
        )
    default_step_tokens = 512 if device_kind == CPU else 2048
    return EngineSizes(
        dtype=_dtype(config.dtype, model_config, device_kind),
        block_tokens=config.block_tokens,
        max_context_tokens=max_context_tokens,
        max_step_tokens=max(config.max_step_tokens or default_step_tokens, config.max_running),
        vocab_size=_number(model_config, "vocab_size"),
        num_heads=_number(model_config, "num_attention_heads"),
    )


def with_depth(config: EngineConfig, features: Collection[str]) -> EngineConfig:
    """Return settings whose depth is a number of plans.

    Args:
        features: of the device's runtime.
    """
    if config.depth >= 0:
        return config
    return replace_settings(config, depth=int("streams" in features))


def slots_each(config: EngineConfig) -> int:
    """Return the requests of one attention partition that hold a slot at once."""
    return -(-config.max_running // config.dp)


def slots_of(config: EngineConfig) -> int:
    """Return those of all partitions: `max_running`, or what makes it even."""
    return slots_each(config) * config.dp


def arena_bytes(
    config: EngineConfig,
    groups: Sequence[CacheGroup],
    sizes: EngineSizes,
    *,
    free_bytes: int,
) -> int:
    """Return how many bytes the cache gets: as set, or four contexts within 40 % of free memory."""
    if config.kv_gib:
        return int(config.kv_gib * GIB)
    wanted = {"full": sizes.max_context_tokens}
    wanted_bytes = 0
    for group in groups:
        seen_tokens = min(group.window + sizes.max_step_tokens, sizes.max_context_tokens)
        wanted["state"] = working_rows(config, group) + SNAPSHOTS_OF_A_CONTEXT
        units = CONTEXTS_IN_CACHE * wanted.get(group.kind, seen_tokens)
        wanted_bytes += units * unit_bytes(group, sizes.dtype)
    # The sentinel, and a started block each.
    spare_bytes = max(
        unit_bytes(group, sizes.dtype) * (1 if group.kind == "state" else sizes.block_tokens)
        for group in groups
    )
    wanted_bytes += (len(groups) + 1) * spare_bytes
    return min(wanted_bytes, int(free_bytes * MEMORY_SHARE))


def working_rows(config: EngineConfig, group: CacheGroup) -> int:
    """Return how many rows of a state group a running request writes in turn."""
    assert config.depth >= 0, "depth is resolved before sizes are counted"
    is_kept = config.speculator and group.speculation == "rows_per_position"
    return max(config.depth + 1, 1 + config.max_drafts if is_kept else 0)


def check_speculation(config: EngineConfig, groups: Sequence[CacheGroup]) -> None:
    """Check that the model can take wrong drafts back, if there are to be any.

    Raises:
        ConfigError: one of its state groups cannot.
    """
    for group in groups:
        if config.speculator and group.kind == "state" and group.speculation == "none":
            raise ConfigError(
                f"speculator is {config.speculator!r}, but the model's cache group {group.name!r} "
                "keeps a state and has speculation 'none': wrong drafts could not be taken back; "
                "drop --speculator, or let the model declare 'replay' or 'rows_per_position'"
            )


def check_tables(
    config: EngineConfig, groups: Sequence[CacheGroup], sizes: EngineSizes, *, free_bytes: int
) -> None:
    """Check that the tables of positions and blocks leave memory for the rest.

    Raises:
        CapacityError: they do not; context or running requests must be limited.
    """
    tabled = [group for group in groups if group.kind != "state"]
    # Cosines and sines in float32, and as much again while they are computed.
    position_bytes = (
        2 * 4 * max((field.shape[-1] for group in tabled for field in group.fields), default=0)
    )
    # Block ids in int32, on the host and on the device.
    row_bytes = 2 * 4 * len(tabled) * -(-sizes.max_context_tokens // sizes.block_tokens)
    wanted_bytes = position_bytes * sizes.max_context_tokens + row_bytes * config.max_running
    if wanted_bytes > free_bytes * MEMORY_SHARE:
        raise CapacityError(
            f"tables for {config.max_running} requests of {sizes.max_context_tokens} tokens need "
            f"{wanted_bytes / GIB:.1f} GiB, allowed is {MEMORY_SHARE:.0%} of the "
            f"{free_bytes / GIB:.1f} GiB of memory that are free; lower max_context_tokens or "
            "max_running, or correct max_position_embeddings in config.json"
        )


def max_sequence_tokens(layout: ArenaLayout, *, state_rows: int = 1, step_tokens: int = 1) -> int:
    """Return the longest sequence whose blocks of every group fit into the empty arena.

    Args:
        state_rows: rows of a state group that a running request needs.
        step_tokens: most query tokens of a step: a window group holds them beside its window.
    """
    usable = layout.num_physical_blocks - 1

    def physical(blocks: int, group: GroupLayout) -> int:
        window_blocks = -(-(group.group.window + step_tokens) // layout.block_tokens) + 1
        most = {"state": state_rows, "window": window_blocks}.get(group.kind, blocks)
        return -(-min(blocks, most) // group.packing)

    low, high = 0, usable * max(group.packing for group in layout.groups)
    while low < high:
        blocks = (low + high + 1) // 2
        needed = sum(physical(blocks, group) for group in layout.groups)
        low, high = (blocks, high) if needed <= usable else (low, blocks - 1)
    return low * layout.block_tokens


def _dtype(wanted: str, model_config: Mapping[str, Any], device_kind: str) -> str:
    if wanted != "auto":
        return wanted
    own = model_config.get("dtype") or model_config.get("torch_dtype")
    return str(own) if device_kind != CPU and isinstance(own, str) and own in DTYPES else "float32"


def _number(model_config: Mapping[str, Any], name: str) -> int:
    value = model_config.get(name)
    if type(value) is not int or not 0 < value < 2**31:
        raise ConfigError(
            f"config.json: {name} is {shown(value)}, an integer from 1 to {2**31 - 1} is needed; "
            "use the config.json that came with the weights"
        )
    return value
