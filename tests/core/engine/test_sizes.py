"""Sizes left to "auto": from the model, the device and the memory that is free."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.cache_groups import make_groups

from tokenspeed.config.schema import EngineConfig
from tokenspeed.contracts.model import CacheField, CacheGroup, gqa_fields
from tokenspeed.engine.sizes import (
    EngineSizes,
    arena_bytes,
    check_tables,
    max_sequence_tokens,
    resolve_sizes,
    with_depth,
)
from tokenspeed.errors import CapacityError, ConfigError
from tokenspeed.kv import solve_layout

MODEL = {"max_position_embeddings": 2048, "vocab_size": 100, "num_attention_heads": 4}


def sizes_of(
    *, device_kind: str = "cpu", model: dict[str, Any] = MODEL, **config: Any
) -> EngineSizes:
    """Resolved sizes."""
    return resolve_sizes(EngineConfig(**config), model, device_kind=device_kind)


def test_a_cpu_gets_float32_and_small_steps_and_others_the_checkpoints_dtype() -> None:
    model = MODEL | {"torch_dtype": "bfloat16"}
    cpu, other = sizes_of(model=model), sizes_of(model=model, device_kind="other")
    assert (cpu.dtype, cpu.max_step_tokens) == ("float32", 512)
    assert (other.dtype, other.max_step_tokens) == ("bfloat16", 2048)


def test_a_step_has_room_for_one_token_of_every_running_request() -> None:
    assert sizes_of(max_step_tokens=8, max_running=32).max_step_tokens == 32


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"max_context_tokens": 4096}, "2048"),
    ],
)
def test_settings_out_of_range_are_refused_with_value_and_limit(
    config: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        sizes_of(**config)


def test_a_config_without_a_needed_number_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="vocab_size is None"):
        sizes_of(model={**MODEL, "vocab_size": None})


@pytest.mark.parametrize("value", [2**31, 10**400, True, "2048", 1.5])
def test_a_number_that_is_no_size_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="max_position_embeddings is "):
        sizes_of(model={**MODEL, "max_position_embeddings": value})


def test_an_endless_context_must_be_limited() -> None:
    endless = {**MODEL, "max_position_embeddings": 2**31 - 1}
    with pytest.raises(ConfigError, match=r"allowed is 2 to 16777216 .* set it lower"):
        sizes_of(model=endless)
    assert sizes_of(model=endless, max_context_tokens=4096).max_context_tokens == 4096


def test_tables_that_leave_no_memory_are_refused_before_they_are_made() -> None:
    groups = make_groups((2, 1, 16))
    huge = sizes_of(model={**MODEL, "max_position_embeddings": 2**24})
    check_tables(EngineConfig(), groups, sizes_of(), free_bytes=1 << 30)
    with pytest.raises(CapacityError, match="lower max_context_tokens"):
        check_tables(EngineConfig(), groups, huge, free_bytes=1 << 30)


def test_the_cache_takes_four_contexts_or_two_fifths_of_free_memory() -> None:
    groups = make_groups((2, 1, 16))
    sizes = sizes_of()
    token_bytes = 4 * 2 * 2 * 16
    ample = arena_bytes(EngineConfig(depth=0), groups, sizes, free_bytes=1 << 40)
    assert ample == token_bytes * (4 * 2048 + 2 * 128)
    assert arena_bytes(EngineConfig(depth=0), groups, sizes, free_bytes=1000) == 400
    assert arena_bytes(EngineConfig(depth=0, kv_gib=0.5), groups, sizes, free_bytes=0) == 1 << 29


def test_the_longest_sequence_fills_the_arena_in_every_group() -> None:
    groups = make_groups((2, 1, 16), (1, 2, 48))
    layout = solve_layout(groups, block_tokens=16, dtype="float32", arena_bytes=1 << 19)
    blocks = max_sequence_tokens(layout) // 16
    usable = layout.num_physical_blocks - 1

    def physical(count: int) -> int:
        return sum(-(-count // group.packing) for group in layout.groups)

    assert physical(blocks) <= usable < physical(blocks + 1)


HYBRID = (
    CacheGroup("full", "full", (0,), gqa_fields(1, 16)),
    CacheGroup("window", "window", (1,), gqa_fields(1, 16), window=100),
    CacheGroup("state", "state", (2, 3), (CacheField("s", (64,), "float32"),)),
)


def test_windows_and_states_take_what_four_contexts_of_them_need() -> None:
    sizes = sizes_of(max_step_tokens=64)
    token, snapshot = 2 * 16 * 4, 2 * 64 * 4
    wanted = arena_bytes(EngineConfig(depth=1), HYBRID, sizes, free_bytes=1 << 40)
    window_tokens, rows = 100 + 64, 1 + 1 + 3
    assert wanted == 4 * (2048 * token + window_tokens * token + rows * snapshot) + (
        4 * 128 * token
    )


def test_a_step_is_planned_ahead_where_the_device_computes_beside_the_host() -> None:
    assert with_depth(EngineConfig(), {"streams", "pinned"}).depth == 1
    assert with_depth(EngineConfig(), {"pinned"}).depth == 0
    assert with_depth(EngineConfig(depth=0), {"streams"}).depth == 0
    assert with_depth(EngineConfig(depth=1), ()).depth == 1


def test_tables_are_counted_for_groups_that_have_them_only() -> None:
    longest = sizes_of(model={**MODEL, "max_position_embeddings": 1 << 20})
    state = (CacheGroup("state", "state", (1,), (CacheField("s", (1 << 20,), "float32"),)),)
    check_tables(EngineConfig(), (*make_groups((1, 1, 16)), *state), longest, free_bytes=2**29)


def test_a_sequence_needs_one_window_and_its_rows_beside_its_history() -> None:
    layout = solve_layout(HYBRID, block_tokens=16, dtype="float32", arena_bytes=1 << 18)
    full, window, *states = layout.groups
    blocks = max_sequence_tokens(layout, state_rows=2, step_tokens=32) // 16
    fixed = -(-(-(-(100 + 32) // 16) + 1) // window.packing)
    fixed += sum(-(-2 // state.packing) for state in states)
    usable = layout.num_physical_blocks - 1
    assert -(-blocks // full.packing) + fixed <= usable
    assert -(-(blocks + 1) // full.packing) + fixed > usable
