"""Transfers move exactly the bytes that the plan names, and report what did not arrive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.cache_groups import make_groups

from tokenspeed.contracts.faults import Faults
from tokenspeed.contracts.step import GET, LOAD, PUT, STORE
from tokenspeed.executor.transfers import TierTransfers
from tokenspeed.kv import ArenaLayout, solve_layout
from tokenspeed_reference.stores.memory import MemoryStore

GROUPS = make_groups((3, 2, 8), (4, 1, 8))
BLOCK_TOKENS = 16


def make_plan(
    transfers: list[tuple[int, ...]] | None = None, moves: list[tuple[int, ...]] | None = None
) -> Any:
    moves = moves or []
    keys = np.array([[move[3]] * 16 for move in moves], dtype=np.uint8).reshape(-1, 16)
    return SimpleNamespace(
        transfers=np.array(transfers or [], dtype=np.int32).reshape(-1, 6),
        store_moves=np.array(moves, dtype=np.int32).reshape(-1, 4),
        store_keys=keys,
        store_tokens=np.tile(keys[:, :1].astype(np.int32), BLOCK_TOKENS),
    )


class Tiers:
    """An arena full of noise, an empty host tier, and the transfers between them."""

    def __init__(self, **options: Any) -> None:
        self.layout: ArenaLayout = solve_layout(
            GROUPS, block_tokens=BLOCK_TOKENS, dtype_bytes=4, arena_bytes=1 << 19
        )
        random = torch.Generator().manual_seed(1)
        self.arena = torch.randint(
            0, 256, (self.layout.total_bytes,), generator=random, dtype=torch.uint8
        )
        self.host = torch.zeros(5 * self.layout.physical_bytes, dtype=torch.uint8)
        self.transfers = TierTransfers(
            self.arena, self.host, layout=self.layout, groups=GROUPS, **options
        )

    def device_bytes(self, group: int, block: int) -> torch.Tensor:
        return self._bytes(self.arena, group, block)

    def host_bytes(self, group: int, slot: int) -> torch.Tensor:
        return self._bytes(self.host, group, slot)

    def _bytes(self, storage: torch.Tensor, group: int, block: int) -> torch.Tensor:
        laid_out = self.layout.groups[group]
        start = block * laid_out.logical_bytes
        return storage[start : start + laid_out.payload_bytes]

    def run(self, plan: Any) -> dict[int, int]:
        self.transfers.start(plan)
        acks: dict[int, int] = {}
        while self.transfers.is_busy():
            acks |= dict(self.transfers.poll().tolist())
        return acks


@pytest.mark.parametrize("group", [0, 1])
def test_a_block_survives_the_way_to_the_host_and_back(group: int) -> None:
    tiers = Tiers()
    before, arena = tiers.device_bytes(group, 3).clone(), tiers.arena.clone()
    assert tiers.run(make_plan([(1, STORE, group, 3, 2, -1)])) == {1: 1}
    assert torch.equal(tiers.host_bytes(group, 2), before)
    assert int(tiers.host.count_nonzero()) == int(before.count_nonzero()), "and nothing else"
    assert torch.equal(tiers.arena, arena)
    assert tiers.run(make_plan([(2, LOAD, group, 5, 2, -1)])) == {2: 1}
    assert torch.equal(tiers.device_bytes(group, 5), before)
    tiers.device_bytes(group, 5).copy_(
        arena[tiers.device_bytes(group, 5).storage_offset() :][: len(before)]
    )
    assert torch.equal(tiers.arena, arena), "no other byte was written"


def test_layer_ranges_together_are_the_whole_block() -> None:
    tiers = Tiers(layer_ranges=3)
    before = tiers.device_bytes(0, 3).clone()
    tiers.run(make_plan([(1, STORE, 0, 3, 2, -1)]))
    tiers.device_bytes(0, 3).zero_()
    layer_bytes = len(before) // len(GROUPS[0].layers)
    for part in (2, 0, 1):
        assert tiers.run(make_plan([(part, LOAD, 0, 3, 2, part)])) == {part: 1}
        span = slice(part * layer_bytes, (part + 1) * layer_bytes)
        assert torch.equal(tiers.device_bytes(0, 3)[span], before[span])
    assert torch.equal(tiers.device_bytes(0, 3), before)


def test_a_block_that_is_stored_and_refilled_by_one_plan_is_stored_first() -> None:
    tiers = Tiers()
    first, second = tiers.device_bytes(0, 3).clone(), tiers.device_bytes(0, 4).clone()
    tiers.run(make_plan([(1, STORE, 0, 4, 1, -1)]))
    tiers.run(make_plan([(2, LOAD, 0, 3, 1, -1), (3, STORE, 0, 3, 2, -1)]))
    assert torch.equal(tiers.host_bytes(0, 2), first)
    assert torch.equal(tiers.device_bytes(0, 3), second)


def test_the_store_keeps_what_the_host_forgets() -> None:
    tiers = Tiers(store=MemoryStore(namespace="", folder="", capacity_bytes=1 << 20))
    before = tiers.device_bytes(1, 3).clone()
    tiers.run(make_plan([(1, STORE, 1, 3, 2, -1)]))
    assert tiers.run(make_plan(moves=[(2, PUT, 1, 2)])) == {2: 1}
    assert tiers.transfers.stored_keys().tolist() == [[2] * 16]
    tiers.host.zero_()
    assert tiers.run(make_plan(moves=[(3, GET, 1, 2)])) == {3: 1}
    assert torch.equal(tiers.host_bytes(1, 2), before)


def test_a_record_that_was_damaged_or_lost_is_reported() -> None:
    store = MemoryStore(namespace="", folder="", capacity_bytes=1 << 20)
    tiers = Tiers(store=store)
    tiers.run(make_plan(moves=[(1, PUT, 1, 2)]))
    store.damage(bytes([2] * 16))
    assert tiers.run(make_plan(moves=[(2, GET, 1, 2), (3, GET, 1, 4)])) == {2: 0, 3: 0}
    assert tiers.transfers.lost_keys().tolist() == [[2] * 16]


def test_planned_faults_fail_and_delay_and_touch_nothing() -> None:
    tiers = Tiers(faults=Faults(3, fail_share=0.5, max_delay_polls=4))
    rows = [(block, STORE, 0, block, block, -1) for block in range(1, 5)]
    acks = tiers.run(make_plan(rows))
    assert sorted(acks) == [1, 2, 3, 4]
    assert 0 < sum(acks.values()) < 4
    for block, ok in acks.items():
        same = torch.equal(tiers.host_bytes(0, block), tiers.device_bytes(0, block))
        assert same == bool(ok)
