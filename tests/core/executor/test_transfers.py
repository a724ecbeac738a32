"""Transfers move exactly the bytes that the plan names, and report what did not arrive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.contracts.faults import Faults
from tokenspeed.contracts.model import CacheField, CacheGroup, gqa_fields
from tokenspeed.contracts.step import GET, LOAD, PUT, STORE
from tokenspeed.errors import CapacityError
from tokenspeed.executor.transfers import TierTransfers
from tokenspeed.kv import Arena, ArenaLayout, solve_layout
from tokenspeed_reference.stores.memory import MemoryStore

GROUPS = (
    CacheGroup("full", "full", (3, 7, 8), gqa_fields(2, 8)),
    CacheGroup("gdn", "state", (0, 1, 2, 4, 5, 6), (CacheField("s", (4, 8, 4), "float32"),)),
)
MLA = (
    CacheGroup(
        "mla", "full", (0, 1, 2), (CacheField("latent", (24,)), CacheField("index", (12,), "uint8"))
    ),
)
CASES = {
    "block_major": (GROUPS, {}),
    "layer_major": (GROUPS, {"full": CacheDemand(orders=("layer_major",))}),
    "packed": (MLA, {"mla": CacheDemand(page_tokens=8, packed=True, fields=("latent",))}),
}
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

    def __init__(self, case: str = "block_major", **options: Any) -> None:
        groups, demands = CASES[case]
        self.layout: ArenaLayout = solve_layout(
            groups,
            block_tokens=BLOCK_TOKENS,
            dtype="float32",
            arena_bytes=1 << 19,
            demands=demands,
        )
        random = torch.Generator().manual_seed(1)
        self.arena = torch.randint(
            0, 256, (self.layout.total_bytes,), generator=random, dtype=torch.uint8
        )
        self._blocks = Arena(self.layout, self.arena)
        self.host = torch.zeros(5 * self.layout.physical_bytes, dtype=torch.uint8)
        self.transfers = TierTransfers(self.arena, self.host, layout=self.layout, **options)

    def num_layers(self, group: int) -> int:
        return len(self.layout.groups[group].layers)

    def block(self, group: int, block: int, layers: tuple[int, int] | None = None) -> torch.Tensor:
        """Read a block's bytes where the arena's own extents say that they are."""
        span = layers or (0, self.num_layers(group))
        return torch.cat([self.arena[run] for run in self._runs(group, block, span)])

    def fill(self, group: int, block: int, value: int) -> None:
        for run in self._runs(group, block, (0, self.num_layers(group))):
            self.arena[run] = value

    def slot(self, group: int, slot: int) -> torch.Tensor:
        start = slot * self.layout.groups[group].logical_bytes
        return self.host[start : start + self.layout.groups[group].logical_bytes]

    def _runs(self, group: int, block: int, layers: tuple[int, int]) -> list[slice]:
        return [
            slice(start, start + extent.run_bytes)
            for extent in self._blocks.block_bytes(group, block, layers)
            for start in range(
                extent.base_bytes,
                extent.base_bytes + extent.count * extent.stride_bytes,
                extent.stride_bytes,
            )
        ]

    def run(self, plan: Any) -> dict[int, int]:
        self.transfers.start(plan)
        acks: dict[int, int] = {}
        while self.transfers.is_busy():
            acks |= dict(self.transfers.poll().tolist())
        return acks


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_ranges", [1, 2, 3])
def test_blocks_survive_the_way_to_the_host_and_back(case: str, num_ranges: int) -> None:
    tiers = Tiers(case, layer_ranges=num_ranges)
    arena = tiers.arena.clone()
    for group in range(len(tiers.layout.groups)):
        before = tiers.block(group, 3)
        assert tiers.run(make_plan([(1, STORE, group, 3, 2, -1)])) == {1: 1}
        assert torch.equal(tiers.arena, arena)
        tiers.fill(group, 3, 0)
        for part in reversed(range(num_ranges)):
            assert tiers.run(make_plan([(part, LOAD, group, 3, 2, part)])) == {part: 1}
        assert torch.equal(tiers.block(group, 3), before)
    assert torch.equal(tiers.arena, arena), "no other byte was written"


def test_a_layer_range_is_exactly_its_layers() -> None:
    tiers = Tiers("layer_major", layer_ranges=3)
    before = tiers.block(1, 3)
    tiers.run(make_plan([(1, STORE, 1, 3, 2, -1)]))
    tiers.fill(1, 3, 0)
    tiers.run(make_plan([(2, LOAD, 1, 3, 2, 1)]))
    wanted = before.clone().view(6, -1)
    wanted[:2], wanted[4:] = 0, 0
    assert torch.equal(torch.cat([tiers.block(1, 3, (layer, layer + 1)) for layer in range(6)]),
                       wanted.flatten())  # fmt: skip


def test_a_block_that_is_stored_and_refilled_by_one_plan_is_stored_first() -> None:
    tiers = Tiers()
    first, second = tiers.block(0, 3), tiers.block(0, 4)
    tiers.run(make_plan([(1, STORE, 0, 4, 1, -1)]))
    tiers.run(make_plan([(2, LOAD, 0, 3, 1, 0), (3, STORE, 0, 3, 2, -1)]))
    assert torch.equal(tiers.block(0, 3), second)
    tiers.run(make_plan([(4, LOAD, 0, 5, 2, 0)]))
    assert torch.equal(tiers.block(0, 5), first)


def test_the_store_keeps_what_the_host_forgets() -> None:
    tiers = Tiers(store=MemoryStore(namespace="", folder="", capacity_bytes=1 << 20))
    before = tiers.block(1, 3)
    tiers.run(make_plan([(1, STORE, 1, 3, 2, -1)]))
    assert tiers.run(make_plan(moves=[(2, PUT, 1, 2)])) == {2: 1}
    assert tiers.transfers.stored_keys().tolist() == [[2] * 16]
    tiers.host.zero_()
    assert tiers.run(make_plan(moves=[(3, GET, 1, 2)])) == {3: 1}
    tiers.run(make_plan([(4, LOAD, 1, 5, 2, 0)]))
    assert torch.equal(tiers.block(1, 5), before)


def test_a_record_that_was_damaged_or_lost_is_reported() -> None:
    store = MemoryStore(namespace="", folder="", capacity_bytes=1 << 20)
    tiers = Tiers(store=store)
    tiers.run(make_plan(moves=[(1, PUT, 1, 2)]))
    store.damage(bytes([2] * 16))
    assert tiers.run(make_plan(moves=[(2, GET, 1, 2), (3, GET, 1, 4)])) == {2: 0, 3: 0}
    assert tiers.transfers.lost_keys().tolist() == [[2] * 16]


def test_a_host_tier_without_room_for_a_block_is_refused() -> None:
    tiers = Tiers()
    with pytest.raises(CapacityError, match="host tier has 1,000 bytes"):
        TierTransfers(tiers.arena, torch.zeros(1000, dtype=torch.uint8), layout=tiers.layout)


def test_planned_faults_fail_and_delay_and_touch_nothing() -> None:
    tiers = Tiers(faults=Faults(3, fail_share=0.5, max_delay_polls=4))
    rows = [(block, STORE, 0, block, block, -1) for block in range(1, 5)]
    acks = tiers.run(make_plan(rows))
    assert sorted(acks) == [1, 2, 3, 4]
    assert 0 < sum(acks.values()) < 4
    for block, ok in acks.items():
        assert bool(tiers.slot(0, block).any()) == bool(ok)
