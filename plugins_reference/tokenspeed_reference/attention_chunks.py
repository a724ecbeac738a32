"""Attention of rows in plain torch: each row gathers its blocks and makes one attention call.

Every row is computed on its own keys, cut to its exact length, so that neither another row nor a
stale or NaN cell of a block can change its result.
Legend: T query tokens, N query heads, K kv heads, G = N / K, H head dim, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention

from tokenspeed_sdk import AttentionBatch, KVView

MASK_ELEMENTS = 1 << 21
"""Elements of one causal mask at most (8 MiB in float32): longer chunks go in query tiles."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row: its query tokens, all its blocks, and the mask where a prefix is cached."""

    query: slice
    num_keys: int
    blocks: tuple[int, ...]
    mask_TS: torch.Tensor | None


class ChunkAttention:
    """Plans and attends rows of any number of query tokens, on any torch device."""

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._shape = (-1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        self._block_tokens = block_tokens
        self._dtype = dtype
        self._device = device

    def plan(self, batch: AttentionBatch, *, first_row: int = 0) -> tuple[Chunk, ...]:
        """Plan the rows from `first_row` on."""
        starts = batch.query_start.tolist()
        contexts = batch.context_tokens.tolist()
        return tuple(
            self._chunk(
                slice(starts[row], starts[row + 1]),
                contexts[row] + starts[row + 1] - starts[row],
                batch.block_tables[row].tolist(),
            )
            for row in range(first_row, len(contexts))
        )

    def attend(
        self,
        out_TNH: torch.Tensor,
        q_TNH: torch.Tensor,
        kv: KVView,
        chunks: tuple[Chunk, ...],
        scale: float,
    ) -> None:
        """Write the output of each chunk's tokens."""
        out_TKGH, q_TKGH = out_TNH.view(self._shape), q_TNH.view(self._shape)
        for chunk in chunks:
            self._attend_chunk(out_TKGH[chunk.query], q_TKGH[chunk.query], kv, chunk, scale)

    def _attend_chunk(
        self,
        out_TKGH: torch.Tensor,
        q_TKGH: torch.Tensor,
        kv: KVView,
        chunk: Chunk,
        scale: float,
    ) -> None:
        """Attend one chunk; the heads that share keys form the batch axis, with stride 0 keys."""
        queries_per_kv = self._shape[2]
        k_KSH, v_KSH = _gather(kv.k, chunk), _gather(kv.v, chunk)
        k_GKSH = k_KSH.expand(queries_per_kv, *k_KSH.shape)
        v_GKSH = v_KSH.expand(queries_per_kv, *v_KSH.shape)
        q_GKTH, out_GKTH = q_TKGH.permute(2, 1, 0, 3), out_TKGH.permute(2, 1, 0, 3)
        if chunk.mask_TS is None:
            causal = q_TKGH.shape[0] > 1
            out_GKTH.copy_(
                scaled_dot_product_attention(q_GKTH, k_GKSH, v_GKSH, is_causal=causal, scale=scale)
            )
            return
        num_tokens, tile = q_TKGH.shape[0], chunk.mask_TS.shape[0]
        for first in range(0, num_tokens, tile):
            last = min(first + tile, num_tokens)
            seen = chunk.num_keys - (num_tokens - last)
            mask = chunk.mask_TS[tile - (last - first) :, chunk.mask_TS.shape[1] - seen :]
            out_GKTH[:, :, first:last] = scaled_dot_product_attention(
                q_GKTH[:, :, first:last],
                k_GKSH[:, :, :seen],
                v_GKSH[:, :, :seen],
                attn_mask=mask,
                scale=scale,
            )

    def _chunk(self, query: slice, num_keys: int, table: list[int]) -> Chunk:
        num_tokens = query.stop - query.start
        has_prefix = num_keys > num_tokens > 1
        mask = self._mask(num_tokens, num_keys) if has_prefix else None
        num_blocks = -(-num_keys // self._block_tokens)
        return Chunk(query, num_keys, tuple(table[:num_blocks]), mask)

    def _mask(self, num_tokens: int, num_keys: int) -> torch.Tensor:
        """Return (tile, num_keys): zeros, and in the last `tile` columns -inf above the diagonal.

        Aligned at its lower right corner: a tile of queries that sees `seen` keys takes the last
        `seen` columns, so that one mask serves every tile of the chunk.
        """
        tile = min(num_tokens, max(16, MASK_ELEMENTS // num_keys))
        mask = torch.zeros(tile, num_keys, dtype=self._dtype, device=self._device)
        future = torch.full((tile, tile), -torch.inf, dtype=self._dtype, device=self._device)
        mask[:, num_keys - tile :] = future.triu(1)
        return mask


def written_cells(batch: AttentionBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (T,) block and offset in it where each token of the step is written."""
    if batch.num_decode_rows == len(batch.context_tokens):
        rows = np.arange(batch.num_decode_rows)
    else:
        rows = np.repeat(np.arange(len(batch.context_tokens)), np.diff(batch.query_start))
    starts = batch.context_tokens - batch.query_start[:-1]
    positions = np.arange(len(rows)) + starts[rows]
    blocks = batch.block_tables[rows, positions // batch.block_tokens]
    return blocks.astype(np.int64), positions % batch.block_tokens


def _gather(blocks: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    """Return the chunk's keys or values as (K, S, H): a view of one block, a copy of several."""
    parts = [blocks[block] for block in chunk.blocks]
    joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return joined[:, : chunk.num_keys]
