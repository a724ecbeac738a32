"""Paged attention in plain torch. Decode rows read the cache where it lies (`attention_decode`);
chunks of several tokens gather their blocks and make one attention call.

Every row is computed on its own keys, cut to its exact length, so that neither another row nor a
stale or NaN cell of a block can change its result.
Legend: T query tokens, N query heads, K kv heads, G = N / K, H head dim, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from tokenspeed_reference.attention_decode import DecodeGroup, decode, plan_groups
from tokenspeed_sdk import AttentionBatch, KVView

MASK_ELEMENTS = 1 << 21
"""Elements of one causal mask at most (8 MiB in float32): longer chunks go in query tiles."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A prefill row: its query tokens, and the blocks that they see.

    Args:
        num_keys: tokens in the blocks, up to the row's last one.
        mask_TS: see `_mask`; None where plain causality will do.
    """

    query: slice
    num_keys: int
    blocks: tuple[int, ...]
    mask_TS: torch.Tensor | None


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


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer scores keys; see AttentionBackend.attend."""

    scale: float
    sinks_KG: torch.Tensor | None
    softcap: float

    def attend(
        self,
        q_GKTH: torch.Tensor,
        k_GKSH: torch.Tensor,
        v_GKSH: torch.Tensor,
        mask_TS: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attend the last T of S tokens, causally where no mask is given."""
        if self.sinks_KG is None and not self.softcap:
            causal = mask_TS is None and q_GKTH.shape[2] > 1
            return scaled_dot_product_attention(
                q_GKTH, k_GKSH, v_GKSH, attn_mask=mask_TS, is_causal=causal, scale=self.scale
            )
        scores = q_GKTH.float() @ k_GKSH.float().mT * self.scale
        if self.softcap:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if mask_TS is None:
            hidden = torch.ones_like(scores[0, 0], dtype=torch.bool)
            scores.masked_fill_(hidden.triu(1 + scores.shape[3] - scores.shape[2]), -torch.inf)
        else:
            scores += mask_TS
        weights = scores.softmax(-1)
        if self.sinks_KG is not None:  # its share of the softmax leaves the rest
            sinks_GK1 = self.sinks_KG.T.float()[..., None]
            weights *= torch.sigmoid(scores.logsumexp(-1) - sinks_GK1)[..., None]
        return (weights @ v_GKSH.float()).type_as(q_GKTH)


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
        firsts, lengths, tables = self._seen(batch)
        return Plan(
            blocks_T=self._write_blocks(batch),
            offsets_T=batch.positions_T % self._block_tokens,
            num_decode_rows=decodes,
            groups=plan_groups(
                tables[:decodes],
                list(zip(firsts[:decodes], lengths[:decodes], strict=True)),
                heads=(self._shape[1], self._shape[2]),
                block_tokens=self._block_tokens,
                device=self._device,
            ),
            chunks=tuple(
                self._chunk(batch, row, tables[row], lengths[row])
                for row in range(decodes, len(lengths))
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
        scoring = Scoring(
            scale, None if sinks_N is None else sinks_N.view(self._shape[1:3]), softcap
        )
        decodes = metadata.num_decode_rows
        if not metadata.chunks:
            return self._decode(q_TKGH, kv, metadata, scoring).view(q_TNH.shape)
        out_TNH = torch.empty_like(q_TNH)
        out_TKGH = out_TNH.view(self._shape)
        if decodes:
            out_TKGH[:decodes] = self._decode(q_TKGH[:decodes], kv, metadata, scoring)
        for chunk in metadata.chunks:
            self._prefill(out_TKGH[chunk.query], q_TKGH[chunk.query], kv, chunk, scoring)
        return out_TNH

    def _decode(
        self, q_TKGH: torch.Tensor, kv: KVView, metadata: Plan, scoring: Scoring
    ) -> torch.Tensor:
        return decode(
            q_TKGH,
            kv,
            metadata.groups,
            scale=scoring.scale,
            sinks_KG=scoring.sinks_KG,
            softcap=scoring.softcap,
        )

    def _prefill(
        self,
        out_TKGH: torch.Tensor,
        q_TKGH: torch.Tensor,
        kv: KVView,
        chunk: Chunk,
        scoring: Scoring,
    ) -> None:
        """Attend one chunk; the heads that share keys form the batch axis, with stride 0 keys."""
        queries_per_kv = self._shape[2]
        k_KSH, v_KSH = _gather(kv.k, chunk), _gather(kv.v, chunk)
        k_GKSH = k_KSH.expand(queries_per_kv, *k_KSH.shape)
        v_GKSH = v_KSH.expand(queries_per_kv, *v_KSH.shape)
        q_GKTH, out_GKTH = q_TKGH.permute(2, 1, 0, 3), out_TKGH.permute(2, 1, 0, 3)
        num_tokens, mask_TS = q_TKGH.shape[0], chunk.mask_TS
        if mask_TS is None:
            out_GKTH.copy_(scoring.attend(q_GKTH, k_GKSH, v_GKSH, None))
            return
        tile = mask_TS.shape[0]
        for first in range(0, num_tokens, tile):
            last = min(first + tile, num_tokens)
            seen = chunk.num_keys - (num_tokens - last)
            out_GKTH[:, :, first:last] = scoring.attend(
                q_GKTH[:, :, first:last],
                k_GKSH[:, :, :seen],
                v_GKSH[:, :, :seen],
                mask_TS[tile - (last - first) :, mask_TS.shape[1] - seen :],
            )

    def _seen(
        self, batch: AttentionBatch
    ) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
        """Return what each row sees: its first key, its number of keys, and its blocks.

        Keys are counted from the first of the blocks: those wholly before the window are left out.
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
        self, batch: AttentionBatch, row: int, table: tuple[int, ...], num_keys: int
    ) -> Chunk:
        query = slice(int(batch.query_start[row]), int(batch.query_start[row + 1]))
        num_tokens = query.stop - query.start
        has_prefix = num_keys > num_tokens > 1
        is_cut = 0 < batch.window < num_keys
        mask = self._mask(num_tokens, num_keys, batch.window) if has_prefix or is_cut else None
        return Chunk(query, num_keys, table, mask)

    def _mask(self, num_tokens: int, num_keys: int, window: int) -> torch.Tensor:
        """Return (tile, num_keys): zeros, and -inf in the future and before the window.

        Aligned at its lower right corner: a tile of queries that sees `seen` keys takes the last
        `seen` columns, so that one mask serves every tile of the chunk.
        """
        tile = min(num_tokens, max(16, MASK_ELEMENTS // num_keys))
        hidden = torch.ones(tile, num_keys, dtype=torch.bool, device=self._device)
        hidden = hidden.triu(num_keys - tile + 1)
        if window:
            hidden |= hidden.new_ones(hidden.shape).tril(num_keys - tile - window)
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(hidden, -torch.inf)


def _gather(blocks: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    """Return the chunk's keys or values as (K, S, H): a view of one block, a copy of several."""
    parts = [blocks[block] for block in chunk.blocks]
    joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return joined[:, : chunk.num_keys]
