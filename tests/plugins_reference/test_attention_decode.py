"""Rows planned once on the device attend and write as rows planned for a step do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.support.attention import Row, copy_kv, make_batch, make_kv

from tokenspeed.contracts.attention import DecodeRows, KVView
from tokenspeed_reference.attention import PagedAttention

BLOCK_TOKENS = 16
LENGTHS = (1, 16, 17, 40, 33)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 9},
    "window of a block": {"window": 16},
    "sinks and softcap": {"sinks": True, "softcap": 3.0},
}


def backend(**options: Any) -> PagedAttention:
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 20, **options}
    return PagedAttention(
        block_tokens=BLOCK_TOKENS, dtype=torch.float32, device=torch.device("cpu"), **sizes
    )


def decode_rows(blocks: list[tuple[int, ...]], window: int) -> DecodeRows:
    """Lay the rows out in lines that are not theirs in order, with dirt behind their ends."""
    slots = np.random.default_rng(1).permutation(len(blocks)).astype(np.int32)
    tables = np.full((len(blocks) + 1, 4), 13, dtype=np.int32)
    for slot, own in zip(slots, blocks, strict=True):
        tables[slot, : len(own)] = own
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    return DecodeRows(
        slots_R=torch.from_numpy(slots),
        lengths_R=lengths,
        positions_R=lengths.long() - 1,
        tables=torch.from_numpy(tables),
        entry_tokens=BLOCK_TOKENS,
        window=window,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_rows_on_the_device_give_what_a_planned_step_gives(kind: str) -> None:
    options = dict(KINDS[kind])
    window = options.pop("window", 0)
    if options.pop("sinks", False):
        options["sinks_N"] = torch.tensor([0.3, -1.0, 2.0, 0.0])
    blocks = [(3,), (5,), (2, 7), (8, 1, 9), (4, 6, 10)]
    rows = [Row(length - 1, 1, own) for length, own in zip(LENGTHS, blocks, strict=True)]
    batch = make_batch(rows, block_tokens=BLOCK_TOKENS, window=window)
    wanted_kv = make_kv(14, kv_heads=2, head_dim=20, block_tokens=16, dtype=torch.float32)
    kv = copy_kv(wanted_kv, torch.float32)
    for view in (kv, wanted_kv):
        poison_unseen(view, rows)
    q = torch.randn(5, 4, 20, generator=torch.Generator().manual_seed(1))
    k, v = torch.randn(2, 5, 2, 20, generator=torch.Generator().manual_seed(2))
    attention = backend()
    results = []
    for view, plan in (
        (wanted_kv, attention.plan(batch)),
        (kv, attention.plan_decode(decode_rows(blocks, window))),
    ):
        attention.write(k, v, view, plan)
        results.append(attention.attend(q, view, plan, scale=0.3, **options))
    torch.testing.assert_close(results[1], results[0])
    assert torch.equal(kv.k.nan_to_num(7), wanted_kv.k.nan_to_num(7))
    assert torch.equal(kv.v.nan_to_num(7), wanted_kv.v.nan_to_num(7))


def test_a_latent_is_attended_on_the_device_too() -> None:
    latent = torch.randn(6, 1, BLOCK_TOKENS, 24, generator=torch.Generator().manual_seed(3))
    attention = backend(num_kv_heads=1, head_dim=24, v_head_dim=16)
    rows = [Row(20, 1, (2, 5)), Row(3, 1, (4,))]
    q = torch.randn(2, 4, 24, generator=torch.Generator().manual_seed(4))
    new = torch.randn(2, 1, 24, generator=torch.Generator().manual_seed(5))
    lengths = torch.tensor([21, 4], dtype=torch.int32)
    on_device = DecodeRows(
        torch.tensor([1, 0], dtype=torch.int32),
        lengths,
        lengths.long() - 1,
        torch.tensor([[4, 9], [2, 5]], dtype=torch.int32),
        BLOCK_TOKENS,
    )
    results = []
    for plan in (
        attention.plan(make_batch(rows, block_tokens=BLOCK_TOKENS)),
        attention.plan_decode(on_device),
    ):
        cache = latent.clone()
        kv = KVView(cache, cache[..., :16])
        attention.write(new, new[..., :16], kv, plan)
        results.append(attention.attend(q, kv, plan, scale=0.2))
    torch.testing.assert_close(results[1], results[0])


def poison_unseen(kv: KVView, rows: list[Row]) -> None:
    """Fill every cell that no row has written with NaN, the sentinel's too."""
    for cache in (kv.k, kv.v):
        kept = cache.clone()
        cache.fill_(torch.nan)
        for row in rows:
            for place in range(row.context):
                block = row.blocks[place // BLOCK_TOKENS]
                cache[block, :, place % BLOCK_TOKENS] = kept[block, :, place % BLOCK_TOKENS]
