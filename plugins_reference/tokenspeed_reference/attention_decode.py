"""Attention of decode rows: one query token each, keys and values read where the cache lies.

Scores are one product per block. Values are one weighted sum of cache rows per group of rows, as
an embedding bag: any lengths in a single call, and nothing is gathered.
Legend: R rows, K kv heads, G query heads of each, H head dim, C tokens of a block, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tokenspeed_reference.attention_prefill import Scoring, share_beside
from tokenspeed_sdk import KVView


@dataclass(frozen=True, slots=True)
class Tile:
    """One block of one row.

    Args:
        first_key, num_keys: the block's tokens that the row sees; no other cell is read.
        products_KGS: scratch, contiguous as the product wants it; free again after the copy.
        scores_KGS: view into the group's.
    """

    block: int
    first_key: int
    num_keys: int
    products_KGS: torch.Tensor
    scores_KGS: torch.Tensor


@dataclass(slots=True)
class DecodeGroup:
    """Rows with the same number of blocks.

    Args:
        scores_RKGS: float32, S in whole blocks; -inf outside of what the row sees, where no layer
            writes.
        weights_RKGS: their softmax; both are scratch that all layers reuse.
        rows: (row of the step, its tiles in order).
        row_ids_R: the rows of the step.
        blocks_RS, offsets_RS: where each token lies; the first one seen in place of those that are
            not, whose weight is zero.
        bags: weighted cache rows and starts of the sums, made by the step's first layer.
    """

    scores_RKGS: torch.Tensor
    weights_RKGS: torch.Tensor
    rows: tuple[tuple[int, tuple[Tile, ...]], ...]
    row_ids_R: torch.Tensor
    blocks_RS: torch.Tensor
    offsets_RS: torch.Tensor
    bags: tuple[torch.Tensor, torch.Tensor] | None = None


def plan_groups(
    tables: Sequence[Sequence[int]],
    spans: Sequence[tuple[int, int]],
    *,
    heads: tuple[int, int],
    block_tokens: int,
    device: torch.device,
) -> tuple[DecodeGroup, ...]:
    """Group rows by number of blocks.

    Args:
        tables: the blocks that each row sees, in order.
        spans: keys [first, last) that each row sees, counted from its first block.
        heads: (K, G).
    """
    by_size: dict[int, list[int]] = {}
    for row, table in enumerate(tables):
        by_size.setdefault(len(table), []).append(row)
    return tuple(
        _group(
            rows,
            np.array([tables[row] for row in rows]),
            np.array([spans[row] for row in rows]),
            heads,
            block_tokens,
            device,
        )
        for rows in by_size.values()
    )


def decode(
    q_RKGH: torch.Tensor,
    kv: KVView,
    groups: tuple[DecodeGroup, ...],
    scoring: Scoring,
) -> torch.Tensor:
    """Attend one token a row; scores and their softmax are float32."""
    queries = q_RKGH.float() * scoring.scale
    if len(groups) == 1:
        return _attend_group(queries, kv, groups[0], scoring).type_as(q_RKGH)
    out = torch.empty_like(q_RKGH)
    for group in groups:
        attended = _attend_group(queries, kv, group, scoring)
        out.index_copy_(0, group.row_ids_R, attended.type_as(out))
    return out


def _attend_group(
    queries: torch.Tensor, kv: KVView, group: DecodeGroup, scoring: Scoring
) -> torch.Tensor:
    """Return (R, K, G, H) of the group's rows, dtype of the cache."""
    keys = kv.k.transpose(2, 3)
    for row, tiles in group.rows:
        query = queries[row]
        for tile in tiles:
            seen = keys[tile.block].narrow(2, tile.first_key, tile.num_keys)
            torch.bmm(query, seen.float(), out=tile.products_KGS)
            if scoring.softcap:
                tile.products_KGS.div_(scoring.softcap).tanh_().mul_(scoring.softcap)
            tile.scores_KGS.copy_(tile.products_KGS)
    weights = torch.softmax(group.scores_RKGS, -1, out=group.weights_RKGS)
    if scoring.sinks_KG is not None:
        weights.mul_(share_beside(group.scores_RKGS.logsumexp(-1), scoring.sinks_KG)[..., None])
    if group.bags is None:
        group.bags = _bags(group, kv.v)
    cells, starts = group.bags
    summed = torch.embedding_bag(
        _rows_of(kv.v), cells, starts, per_sample_weights=weights.view(-1).type_as(kv.v)
    )[0]
    return summed.view(*weights.shape[:3], -1)


def _rows_of(cache: torch.Tensor) -> torch.Tensor:
    """Return the memory of a layer's keys or values as (rows, H), one row a head and token.

    What lies between its blocks (other layers) are rows that nothing names.
    """
    num_blocks, kv_heads, block_tokens, head_dim = cache.shape
    between = cache.stride(0) // head_dim
    num_rows = (num_blocks - 1) * between + kv_heads * block_tokens
    return cache.as_strided((num_rows, head_dim), (head_dim, 1))


def _bags(group: DecodeGroup, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of `_rows_of(cache)` in the order of the weights, and each sum's start."""
    _, kv_heads, block_tokens, head_dim = cache.shape
    assert cache.stride()[1:] == (block_tokens * head_dim, head_dim, 1), "heads are contiguous"
    assert cache.stride(0) % head_dim == 0, "blocks lie whole rows apart"
    shape = group.weights_RKGS.shape
    cells_RS = group.blocks_RS * (cache.stride(0) // head_dim) + group.offsets_RS
    heads_K = torch.arange(kv_heads, device=cache.device) * block_tokens
    cells_RKGS = (cells_RS[:, None] + heads_K[:, None])[:, :, None].expand(shape)
    starts = torch.arange(0, shape.numel(), shape[-1], device=cache.device)
    return cells_RKGS.reshape(-1), starts


def _group(
    rows: list[int],
    tables_RB: np.ndarray,
    spans_R2: np.ndarray,
    heads: tuple[int, int],
    block_tokens: int,
    device: torch.device,
) -> DecodeGroup:
    num_keys = tables_RB.shape[1] * block_tokens
    shape = (len(rows), *heads, num_keys)
    scores = torch.full(shape, -torch.inf, device=device)
    first_R1, last_R1 = spans_R2[:, :1], spans_R2[:, 1:]
    positions = np.arange(num_keys)
    is_seen_RS = (positions >= first_R1) & (positions < last_R1)
    positions_RS = np.where(is_seen_RS, positions, first_R1)
    blocks_RS = np.take_along_axis(tables_RB, positions_RS // block_tokens, axis=1)
    scratch = torch.empty(scores[0].numel(), device=device)
    return DecodeGroup(
        scores_RKGS=scores,
        weights_RKGS=torch.empty_like(scores),
        rows=tuple(
            (row, _tiles(scratch, scores[index], table, span, block_tokens))
            for index, (row, table, span) in enumerate(
                zip(rows, tables_RB.tolist(), spans_R2.tolist(), strict=True)
            )
        ),
        row_ids_R=torch.tensor(rows, device=device),
        blocks_RS=torch.from_numpy(blocks_RS.astype(np.int64)).to(device),
        offsets_RS=torch.from_numpy(positions_RS % block_tokens).to(device),
    )


def _tiles(
    scratch: torch.Tensor,
    scores_KGS: torch.Tensor,
    table: list[int],
    span: tuple[int, int],
    block_tokens: int,
) -> tuple[Tile, ...]:
    kv_heads, queries_per_kv, num_cells = scores_KGS.shape
    first, last = span
    starts = [first, *range(block_tokens, num_cells, block_tokens)]
    sizes = np.diff([*starts, last]).tolist()
    products = {
        size: scratch[: kv_heads * queries_per_kv * size].view(kv_heads, queries_per_kv, size)
        for size in set(sizes)
    }
    parts = scores_KGS[..., first:last].split_with_sizes(sizes, -1)
    return tuple(
        Tile(block, start % block_tokens, size, products[size], scores)
        for block, start, size, scores in zip(table, starts, sizes, parts, strict=True)
    )
