"""Copies that overlap a busy device keep their order with its readers and writers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tokenspeed.contracts.model import CacheGroup, gqa_fields
from tokenspeed.contracts.step import LOAD, STORE
from tokenspeed.executor.transfers import TierTransfers
from tokenspeed.kv import solve_layout

NUM_BLOCKS = 40


def run(transfers: TierTransfers, rows: list[tuple[int, ...]]) -> dict[int, int]:
    plan: Any = SimpleNamespace(
        transfers=np.array(rows, dtype=np.int32), store_moves=np.empty((0, 4), np.int32)
    )
    transfers.start(plan)
    return dict.fromkeys((row[0] for row in rows), 0)


def wait(transfers: TierTransfers, acks: dict[int, int]) -> None:
    while transfers.is_busy():
        acks |= dict(transfers.poll().tolist())
    assert all(acks.values())


@pytest.mark.needs_nvidia
def test_a_busy_device_neither_loses_a_store_nor_sees_a_load_too_early() -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    groups = (CacheGroup("full", "full", (0, 1, 2), gqa_fields(8, 128)),)
    layout = solve_layout(groups, block_tokens=128, dtype="bfloat16", arena_bytes=1 << 28)
    arena = torch.randint(0, 256, (layout.total_bytes,), dtype=torch.uint8, device=device)
    host = torch.zeros(60 * layout.physical_bytes, dtype=torch.uint8).pin_memory()
    transfers = TierTransfers(arena, host, layout=layout, layer_ranges=3)
    stride = layout.groups[0].logical_bytes
    blocks = arena[stride : (NUM_BLOCKS + 1) * stride]
    before, busy = blocks.clone(), torch.randn(4096, 4096, device=device)
    for _ in range(5):
        for _ in range(8):
            busy = busy @ busy * 1e-3
        acks = run(transfers, [(i, STORE, 0, i, i, -1) for i in range(1, NUM_BLOCKS + 1)])
        blocks.fill_(7)  # the block's next owner, in stream order
        wait(transfers, acks)
        for _ in range(8):
            busy = busy @ busy * 1e-3
        seen = blocks.clone()  # its last reader
        rows = [
            (100 * part + i, LOAD, 0, i, i, part)
            for part in range(3)
            for i in range(1, NUM_BLOCKS + 1)
        ]
        wait(transfers, run(transfers, rows))
        torch.accelerator.synchronize()
        assert int((seen != 7).sum()) == 0
        assert torch.equal(blocks, before)
