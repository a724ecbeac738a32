"""Paged attention as a stream: a row's pages go by in tiles, and the softmax is kept running.

No more of a row than one tile is ever gathered. Legend: T query tokens of the step, t of a row,
s keys of a tile, N query heads, K kv heads, G query heads a kv head, H head dim, P pages of a tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tokenspeed_sdk import AttentionBatch, KVView

PAGE_TOKENS = 32
TILE_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its queries, and the pages that any of them sees."""

    begin: int
    end: int
    first_key: int
    pages: torch.Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """What `plan` prepares for all layers of a step."""

    rows: tuple[Row, ...]
    positions_T: torch.Tensor
    page_T: torch.Tensor
    offset_T: torch.Tensor
    page_tokens: int
    window: int


class Attention:
    """AttentionBackend over pages of 32 tokens."""

    def __init__(self, **_: object) -> None:
        """Take what the engine says of the request; the views tell the same."""

    def plan(self, batch: AttentionBatch) -> Plan:
        """Turn tables and positions into pages."""
        paged = batch.page_tables is not None
        tables = batch.page_tables if paged else batch.block_tables
        size = batch.page_tokens if paged else batch.block_tokens
        rows, written = [], [torch.empty(0, dtype=torch.int64)]
        for number, context in enumerate(batch.context_tokens.tolist()):
            begin, end = batch.query_start[number : number + 2].tolist()
            last = context + end - begin
            first_page = max(context - batch.window + 1, 0) // size if batch.window else 0
            table = torch.as_tensor(tables[number, : -(-last // size)].astype("int64"))
            written.append(table[torch.arange(context, last) // size])
            rows.append(Row(begin, end, first_page * size, table[first_page:]))
        positions = batch.positions_T
        page_T = torch.cat(written)
        return Plan(tuple(rows), positions, page_T, positions % size, size, batch.window)

    def write(self, k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, metadata: Plan) -> None:
        """Scatter each token into its page."""
        kv.k[metadata.page_T, :, metadata.offset_T] = k_TKH.to(kv.k.dtype)
        kv.v[metadata.page_T, :, metadata.offset_T] = v_TKH.to(kv.v.dtype)

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
        """Stream each row's pages past its queries, in float32."""
        out_TNH = torch.empty_like(q_TNH)
        for row in metadata.rows:
            if row.end > row.begin:
                stream = _Stream(q_TNH[row.begin : row.end].float() * scale, kv, sinks_N, softcap)
                out_TNH[row.begin : row.end] = stream.run(row, metadata).to(q_TNH.dtype)
        return out_TNH


class _Stream:
    """The running softmax of one row: maximum, sum and weighted values so far."""

    def __init__(
        self, q_tNH: torch.Tensor, kv: KVView, sinks_N: torch.Tensor | None, softcap: float
    ) -> None:
        tokens, heads, head_dim = q_tNH.shape
        self._kv, self._softcap = kv, softcap
        kv_heads = kv.k.shape[1]
        shape = (kv_heads, heads // kv_heads, tokens)
        self._q_KGtH = q_tNH.permute(1, 0, 2).reshape(*shape, head_dim)
        self._max_KGt = torch.full(shape, -math.inf)
        self._sum_KGt = torch.zeros(shape)
        self._values_KGtH = torch.zeros(*shape, kv.v.shape[-1])
        if sinks_N is not None:
            self._max_KGt.copy_(sinks_N.float().view(*shape[:2], 1).expand(shape))
            self._sum_KGt.fill_(1)

    def run(self, row: Row, plan: Plan) -> torch.Tensor:
        """Return (t, N, H)."""
        positions_t = plan.positions_T[row.begin : row.end, None]
        pages = max(TILE_TOKENS // plan.page_tokens, 1)
        last = int(positions_t[-1]) + 1
        for start in range(0, len(row.pages), pages):
            first = row.first_key + start * plan.page_tokens
            keys_1s = torch.arange(first, min(first + pages * plan.page_tokens, last))[None]
            hidden_ts = keys_1s > positions_t
            if plan.window:
                hidden_ts |= keys_1s <= positions_t - plan.window
            self._see(row.pages[start : start + pages], hidden_ts)
        out_KGtH = self._values_KGtH / self._sum_KGt[..., None]
        return out_KGtH.flatten(0, 1).permute(1, 0, 2)

    def _see(self, tile_P: torch.Tensor, hidden_ts: torch.Tensor) -> None:
        k_K1sH, v_K1sH = (
            field[tile_P].float().transpose(0, 1).flatten(1, 2)[:, None, : hidden_ts.shape[1]]
            for field in (self._kv.k, self._kv.v)
        )
        scores = self._q_KGtH @ k_K1sH.transpose(-1, -2)
        if self._softcap:
            scores = torch.tanh(scores / self._softcap) * self._softcap
        scores.masked_fill_(hidden_ts, -math.inf)
        highest = torch.maximum(self._max_KGt, scores.amax(-1))
        level = highest.masked_fill(highest == -math.inf, 0)  # nothing seen yet: exp gives zeros
        weights = torch.exp(scores - level[..., None])
        kept = torch.exp(self._max_KGt - level)
        self._sum_KGt = self._sum_KGt * kept + weights.sum(-1)
        self._values_KGtH = self._values_KGtH * kept[..., None] + weights @ v_K1sH
        self._max_KGt = highest
