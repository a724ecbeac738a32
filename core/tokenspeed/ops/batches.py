"""Rows of a step and caches behind them, for cases of attention and of the paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed.contracts.attention import AttentionBatch, KVView
    from tokenspeed.ops.draw import Draw

ROWS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "no rows": (),
    "first token ever": ((0, 1),),
    "decodes around a block's end": ((14, 1), (15, 1), (16, 1), (17, 1), (31, 1), (32, 1)),
    "one long decode": ((63, 1),),
    "prompt": ((0, 20),),
    "prompt that fills two blocks": ((0, 32),),
    "chunks after a cached prefix": ((16, 16), (23, 19), (31, 2)),
    "decodes, then prompts and chunks": ((40, 1), (2, 1), (0, 17), (15, 3), (47, 2)),
}
"""(Cached tokens, query tokens) of each row, decodes first; ends of blocks are for 16 tokens."""


def batch_of(
    shapes: Sequence[tuple[int, int]], block_tokens: int, draw: Draw, *, window: int = 0
) -> AttentionBatch:
    """Lay rows out as the executor does, over scattered blocks; block 0 belongs to nobody.

    Contexts that stand at the end of a block of 16 tokens are moved to the end of one of
    `block_tokens`.
    """
    import numpy as np
    import torch

    from tokenspeed.contracts.attention import AttentionBatch

    moved = [(_moved(context, block_tokens), queries) for context, queries in shapes]
    counts = [-(-(context + queries) // block_tokens) for context, queries in moved]
    ids = (torch.randperm(sum(counts), generator=draw.random) + 1).tolist()
    tables = np.zeros((len(moved), max(counts, default=0) + 1), np.int32)
    for row, count in enumerate(counts):
        tables[row, :count] = [ids.pop() for _ in range(count)]
    queries = [count for _, count in moved]
    positions = [position for start, count in moved for position in range(start, start + count)]
    return AttentionBatch(
        query_start=np.cumsum([0, *queries], dtype=np.int32),
        context_tokens=np.array([context for context, _ in moved], np.int32),
        num_decode_rows=queries.count(1),
        block_tables=tables,
        block_tokens=block_tokens,
        positions_T=torch.tensor(positions, dtype=torch.int64),
        window=window,
    )


def _moved(context: int, block_tokens: int) -> int:
    blocks = round(context / 16)
    return blocks * block_tokens + context - 16 * blocks


def cache_for(
    batch: AttentionBatch,
    kv_heads: int,
    head_dim: int,
    draw: Draw,
    traits: Mapping[str, Any] | None = None,
) -> KVView:
    """Return one layer's strided view of an arena of three layers, filled with noise.

    Args:
        traits: `cache` and `v_head_dim`, where they are not the usual ones.
    """
    from tokenspeed.contracts.attention import KVView

    num_blocks = int(batch.block_tables.max(initial=0)) + 1
    shape = (num_blocks, 3, 2, kv_heads, batch.block_tokens, head_dim)
    arena = draw.floats(*shape)
    k, v = arena[:, 1, 0], arena[:, 1, 1]
    value_dim = (traits or {}).get("v_head_dim") or head_dim
    is_latent = (traits or {}).get("cache") == "mla"
    return KVView(k, (k if is_latent else v)[..., :value_dim])
