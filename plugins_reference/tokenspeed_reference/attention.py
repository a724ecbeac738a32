"""Paged attention in plain torch: gather a row's blocks once, then one attention call a row.

Every row is computed on its own keys, cut to its exact length: no padding, so that neither
another row nor a stale or NaN cell of a block can change its result.
Legend: T query tokens, N query heads, K kv heads, G = N / K, H head dim, B blocks, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from tokenspeed_sdk import AttentionBatch, KVView

MASK_ELEMENTS = 1 << 21
"""Elements of one causal mask at most (8 MiB in float32): longer chunks go in query tiles."""
GATHER_TOKENS = 1 << 14
"""Cached tokens gathered at once for decode rows, which bounds temporary memory; one row always
goes in one piece."""


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Rows of one query token and equal length, attended to in one call."""

    rows: slice
    num_rows: int
    num_keys: int


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decode rows whose blocks are gathered together: [run 0 rows][run 1 rows]..."""

    blocks_B: torch.Tensor
    runs: tuple[DecodeRun, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A prefill row: its query tokens, all its blocks, and the mask where a prefix is cached."""

    query: slice
    num_keys: int
    blocks_B: torch.Tensor
    mask_TS: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One step, shared by all layers.

    Args:
        blocks_T, offsets_T: where each query token's key and value go.
        order_R: decode rows sorted by length; None: they are sorted already.
    """

    blocks_T: torch.Tensor
    offsets_T: torch.Tensor
    order_R: torch.Tensor | None
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
        self._num_kv_heads = num_kv_heads
        self._queries_per_kv = num_heads // num_kv_heads
        self._head_dim = head_dim
        self._block_tokens = block_tokens
        self._dtype = dtype
        self._device = device

    def plan(self, batch: AttentionBatch) -> Plan:
        """Turn block tables into gather indices, masks and write positions."""
        tables = torch.from_numpy(batch.block_tables).to(self._device, torch.int64)
        starts = torch.from_numpy(batch.query_start).to(torch.int64)
        rows_T = torch.repeat_interleave(starts.diff()).to(self._device)
        blocks_T = tables[rows_T, batch.positions_T // self._block_tokens]
        lengths = (batch.context_tokens + batch.query_start[1:] - batch.query_start[:-1]).tolist()
        decodes = batch.num_decode_rows
        order = sorted(range(decodes), key=lengths.__getitem__)
        is_sorted = order == list(range(decodes))
        return Plan(
            blocks_T=blocks_T,
            offsets_T=batch.positions_T % self._block_tokens,
            order_R=None if is_sorted else torch.tensor(order, device=self._device),
            groups=tuple(self._decode_groups(tables, order, lengths)),
            chunks=tuple(
                self._chunk(tables[row], batch, row, lengths[row])
                for row in range(decodes, len(lengths))
            ),
        )

    def write(self, k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, metadata: Plan) -> None:
        """Store the step's keys and values."""
        kv.k[metadata.blocks_T, :, metadata.offsets_T] = k_TKH
        kv.v[metadata.blocks_T, :, metadata.offsets_T] = v_TKH

    def attend(
        self, q_TNH: torch.Tensor, kv: KVView, metadata: Plan, *, scale: float
    ) -> torch.Tensor:
        """Attend each row to its own keys."""
        shape = (-1, self._num_kv_heads, self._queries_per_kv, self._head_dim)
        q_TKGH = q_TNH.view(shape)
        if not metadata.chunks and metadata.order_R is None:
            parts = self._decode(q_TKGH, kv, metadata.groups, scale)
            return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(q_TNH.shape)
        out_TNH = torch.empty_like(q_TNH)
        out_TKGH = out_TNH.view(shape)
        if metadata.groups:
            self._decode_into(out_TKGH, q_TKGH, kv, metadata, scale)
        for chunk in metadata.chunks:
            self._prefill(out_TKGH[chunk.query], q_TKGH[chunk.query], kv, chunk, scale)
        return out_TNH

    def _decode_into(
        self,
        out_TKGH: torch.Tensor,
        q_TKGH: torch.Tensor,
        kv: KVView,
        plan: Plan,
        scale: float,
    ) -> None:
        num_rows = plan.groups[-1].runs[-1].rows.stop
        if plan.order_R is None:
            out_TKGH[:num_rows] = torch.cat(self._decode(q_TKGH, kv, plan.groups, scale))
        else:
            parts = self._decode(q_TKGH[plan.order_R], kv, plan.groups, scale)
            out_TKGH[plan.order_R] = torch.cat(parts)

    def _decode(
        self, q_RKGH: torch.Tensor, kv: KVView, groups: tuple[DecodeGroup, ...], scale: float
    ) -> list[torch.Tensor]:
        """Attend decode rows in sorted order; the heads that share keys form the query axis."""
        parts = []
        for group in groups:
            k_KSH, v_KSH = self._gather(kv.k, group.blocks_B), self._gather(kv.v, group.blocks_B)
            start = 0
            for run in group.runs:
                padded = -(-run.num_keys // self._block_tokens) * self._block_tokens
                keys = slice(start, start + run.num_rows * padded)
                start = keys.stop
                shape = (self._num_kv_heads, run.num_rows, padded, self._head_dim)
                k = k_KSH[:, keys].view(shape).transpose(0, 1)
                v = v_KSH[:, keys].view(shape).transpose(0, 1)
                seen = run.num_keys
                parts.append(
                    scaled_dot_product_attention(
                        q_RKGH[run.rows], k[:, :, :seen], v[:, :, :seen], scale=scale
                    )
                )
        return parts

    def _prefill(
        self,
        out_TKGH: torch.Tensor,
        q_TKGH: torch.Tensor,
        kv: KVView,
        chunk: Chunk,
        scale: float,
    ) -> None:
        """Attend one chunk; the heads that share keys form the batch axis, with stride 0 keys."""
        k_KSH = self._gather(kv.k, chunk.blocks_B)[:, : chunk.num_keys]
        v_KSH = self._gather(kv.v, chunk.blocks_B)[:, : chunk.num_keys]
        k_GKSH = k_KSH.expand(self._queries_per_kv, *k_KSH.shape)
        v_GKSH = v_KSH.expand(self._queries_per_kv, *v_KSH.shape)
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

    def _gather(self, blocks: torch.Tensor, index_B: torch.Tensor) -> torch.Tensor:
        """Return (K, B * block_tokens, H): a view of one block, or a copy of several."""
        if index_B.shape[0] == 1 and self._device.type == "cpu":
            return blocks[int(index_B)]
        heads, tokens, width = blocks.shape[1:]
        out = blocks.new_empty(heads, index_B.shape[0], tokens, width)
        # Into `out`: plain indexing would keep the block-major order, and need a second copy.
        torch.ops.aten.index.Tensor_out(blocks.transpose(0, 1), [None, index_B], out=out)
        return out.flatten(1, 2)

    def _decode_groups(
        self, tables_RM: torch.Tensor, order: list[int], lengths: list[int]
    ) -> list[DecodeGroup]:
        groups: list[DecodeGroup] = []
        blocks: list[torch.Tensor] = []
        runs: list[DecodeRun] = []
        num_tokens = 0
        for position, row in enumerate(order):
            num_keys = lengths[row]
            num_blocks = -(-num_keys // self._block_tokens)
            if runs and num_tokens + num_keys > GATHER_TOKENS:
                groups.append(DecodeGroup(torch.cat(blocks), tuple(runs)))
                blocks, runs, num_tokens = [], [], 0
            num_tokens += num_keys
            blocks.append(tables_RM[row, :num_blocks])
            if runs and runs[-1].num_keys == num_keys:
                first = runs.pop().rows.start
            else:
                first = position
            runs.append(DecodeRun(slice(first, position + 1), position + 1 - first, num_keys))
        if runs:
            groups.append(DecodeGroup(torch.cat(blocks), tuple(runs)))
        return groups

    def _chunk(
        self, table_M: torch.Tensor, batch: AttentionBatch, row: int, num_keys: int
    ) -> Chunk:
        query = slice(int(batch.query_start[row]), int(batch.query_start[row + 1]))
        num_tokens = query.stop - query.start
        has_prefix = num_keys > num_tokens > 1
        mask = self._mask(num_tokens, num_keys) if has_prefix else None
        return Chunk(query, num_keys, table_M[: -(-num_keys // self._block_tokens)], mask)

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
