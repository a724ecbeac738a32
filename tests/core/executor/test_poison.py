"""Poison reaches what a step writes first, and nothing that a request was given as content."""

from __future__ import annotations

import torch
from tests.support.plans import Row, make_plan

from tokenspeed.contracts.attention import KVView, StateView
from tokenspeed.contracts.model import CacheField, CacheGroup, gqa_fields
from tokenspeed.executor.poison import poison_fresh
from tokenspeed.kv import Arena, solve_layout

GROUPS = (
    CacheGroup("full", "full", (0,), gqa_fields(1, 8)),
    CacheGroup("gdn", "state", (1,), (CacheField("state", (8,), "float32"),)),
)


def test_new_blocks_copy_targets_and_write_rows_are_poisoned_and_what_has_content_is_kept() -> None:
    layout = solve_layout(GROUPS, block_tokens=16, dtype="float32", arena_bytes=2**18)
    arena = Arena(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8))
    write = 20 * layout.groups[1].packing
    plan = make_plan(
        [Row(slot=2, tokens=[1] * 12, context_tokens=24), Row(slot=1, tokens=[1])],
        block_updates=[(2, 0, 0, 3), (2, 0, 1, 4), (2, 0, 2, 5)],
        copies=[(0, 9, 4, 8)],
        state_rows=[[(-1, write)], [(write + 1, write + 1)]],
    )
    poison_fresh(arena, plan)
    kv, state = arena.views()
    assert isinstance(kv, KVView)
    assert isinstance(state, StateView)
    assert kv.k[:10].isnan().any(dim=(1, 2, 3)).nonzero().flatten().tolist() == [4, 5]
    rows = state.fields["state"][write : write + layout.groups[1].packing]
    assert rows.isnan().any(dim=1).nonzero().flatten().tolist() == [0]
