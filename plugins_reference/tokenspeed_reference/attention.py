"""Paged attention in plain torch. Decode rows read the cache where it lies (`attention_decode`);
chunks of several tokens gather their blocks and make one attention call (`attention_prefill`).

Every row is computed on its own keys, cut to exactly what it sees, so that neither another row nor
a stale or NaN cell of a block can change its result.
Legend: T query tokens, N query heads, K kv heads, G = N / K, H head dim, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tokenspeed_reference.attention_decode import DecodeGroup, decode, plan_groups
from tokenspeed_reference.attention_prefill import Chunk, Scoring, make_mask, prefill
from tokenspeed_sdk import AttentionBatch, KVView


@dataclass(frozen=True, slots=True)
class Plan:
    """One step, shared by all layers.

    Args:
        blocks_T, offsets_T: where each query token's key and value go.
    """

    blocks_T: torch.Tensor
    offsets_T: torch.Tensor
    num_decode_rows: int
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


class PagedAttention:
    """AttentionBackend on any torch device; holds no state between steps."""

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

    def plan(self, batch: AttentionBatch) -> Plan:
        """Turn block tables into tiles, masks and write positions."""
        decodes = batch.num_decode_rows
        firsts, lasts, tables = self._seen(batch)
        return Plan(
            blocks_T=self._write_blocks(batch),
            offsets_T=batch.positions_T % self._block_tokens,
            num_decode_rows=decodes,
            groups=plan_groups(
                tables[:decodes],
                list(zip(firsts[:decodes], lasts[:decodes], strict=True)),
                heads=(self._shape[1], self._shape[2]),
                block_tokens=self._block_tokens,
                device=self._device,
            ),
            chunks=tuple(
                self._chunk(batch, row, tables[row], firsts[row], lasts[row])
                for row in range(decodes, len(lasts))
            ),
        )

    def write(self, k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, metadata: Plan) -> None:
        """Store the step's keys and values."""
        kv.k[metadata.blocks_T, :, metadata.offsets_T] = k_TKH
        kv.v[metadata.blocks_T, :, metadata.offsets_T] = v_TKH

    def attend(
        self,
        q_TNH: torch.Tensor,
        kv: KVView,
        metadata: Plan,
        *,
        scale: float,
        sinks_N: torch.Tensor | None = None,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """Attend each row to its own keys."""
        q_TKGH = q_TNH.view(self._shape)
        sinks_KG = None if sinks_N is None else sinks_N.view(self._shape[1:3])
        scoring = Scoring(scale, sinks_KG, softcap)
        decodes = metadata.num_decode_rows
        if not metadata.chunks:
            return decode(q_TKGH, kv, metadata.groups, scoring).view(q_TNH.shape)
        out_TNH = torch.empty_like(q_TNH)
        out_TKGH = out_TNH.view(self._shape)
        if decodes:
            out_TKGH[:decodes] = decode(q_TKGH[:decodes], kv, metadata.groups, scoring)
        for chunk in metadata.chunks:
            prefill(out_TKGH[chunk.query], q_TKGH[chunk.query], kv, chunk, scoring)
        return out_TNH

    def _seen(self, batch: AttentionBatch) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
        """Return what each row sees: keys [first, last), and the blocks that hold them.

        Keys are counted from the first of these blocks; those wholly before the window are left
        out.
        """
        block_tokens = self._block_tokens
        ends = batch.context_tokens + np.diff(batch.query_start)
        starts = np.maximum(batch.context_tokens + 1 - batch.window, 0) * (batch.window > 0)
        skipped = starts // block_tokens
        tables = [
            tuple(table[start : -(-end // block_tokens)])
            for table, start, end in zip(
                batch.block_tables.tolist(), skipped.tolist(), ends.tolist(), strict=True
            )
        ]
        before = skipped * block_tokens
        return (starts - before).tolist(), (ends - before).tolist(), tables

    def _write_blocks(self, batch: AttentionBatch) -> torch.Tensor:
        if batch.num_decode_rows == len(batch.context_tokens):
            rows = np.arange(batch.num_decode_rows)
        else:
            rows = np.repeat(np.arange(len(batch.context_tokens)), np.diff(batch.query_start))
        starts = batch.context_tokens - batch.query_start[:-1]
        positions = np.arange(len(rows)) + starts[rows]
        blocks = batch.block_tables[rows, positions // self._block_tokens]
        return torch.from_numpy(blocks.astype(np.int64)).to(self._device)

    def _chunk(
        self, batch: AttentionBatch, row: int, table: tuple[int, ...], first: int, last: int
    ) -> Chunk:
        query = slice(int(batch.query_start[row]), int(batch.query_start[row + 1]))
        num_tokens, num_keys = query.stop - query.start, last - first
        has_prefix = num_keys > num_tokens > 1
        is_cut = 0 < batch.window < num_keys
        mask: torch.Tensor | None = None
        if has_prefix or is_cut:
            mask = make_mask(num_tokens, num_keys, batch.window, self._dtype, self._device)
        return Chunk(query, first, num_keys, table, mask)
