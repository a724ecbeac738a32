"""Attention slot: a backend that writes K/V into the paged cache and attends to it.

Legend: T query tokens of the step, R rows, N query heads, K kv heads, H head dim, V value
dim, M blocks per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import torch
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class KVView:
    """One layer's keys and values in the arena; strided views, nothing is copied.

    Args:
        k: (num_blocks, num_kv_heads, block_tokens, head_dim), device; written in place.
        v: the same for values, of v_head_dim. In a latent cache (trait cache "mla") it is the
            first part of k: the same memory, one kv head.
    """

    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True, slots=True)
class StateView:
    """One layer of any other group; strided views, nothing is copied.

    Args:
        fields: field name -> (num_blocks, *shape), device; written in place. Where a field is kept
            per token, the tokens lie before the last axis: (num_blocks, *shape[:-1], block_tokens,
            shape[-1]).
    """

    fields: Mapping[str, torch.Tensor]


ARENA_ORDERS = ("block_major", "layer_major")
"""How blocks lie in the arena: a block's layers together, or a layer's blocks; best first."""


@dataclass(frozen=True, slots=True)
class CacheDemand:
    """What a backend needs of the cache's layout; an attention offer's `facts["cache"]`.

    By default a backend reads whole blocks through the strides of its views.

    Args:
        page_tokens: tokens of a page that it reads, a divisor of block_tokens; 0: whole blocks.
        packed: pages of a layer must lie at multiples of their own size from its base.
        fields: the fields that are read in pages; they are of one width (shape[-1]).
        orders: arena orders that it can read.
    """

    page_tokens: int = 0
    packed: bool = False
    fields: tuple[str, ...] = ("k", "v")
    orders: tuple[str, ...] = ARENA_ORDERS


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One step's rows as the backend of one cache group sees them. Host arrays are views.

    Args:
        query_start: (R + 1,) int32 host.
        context_tokens: (R,) int32 host; tokens in the cache before this step.
        num_decode_rows: rows [0, num_decode_rows) have one query token each.
        block_tables: (R, M) int32 host; logical block ids, SENTINEL_BLOCK where unused. Entries of
            blocks that lie wholly before the window are undefined: never read them.
        block_tokens: tokens per logical block.
        positions_T: (T,) int64 device; position of each query token.
        window: a token at position p sees the positions (p - window, p]; 0: all up to p.
        page_tables: (R, pages per row) int32 host; ids into the views of the fields that the
            backend's CacheDemand names, in the order of the tokens; None: it reads whole blocks.
        page_tokens: tokens of such a page.
    """

    query_start: NDArray[np.int32]
    context_tokens: NDArray[np.int32]
    num_decode_rows: int
    block_tables: NDArray[np.int32]
    block_tokens: int
    positions_T: torch.Tensor
    window: int = 0
    page_tables: NDArray[np.int32] | None = None
    page_tokens: int = 0


SHARED_TILE_ROWS = 16
"""Most rows of a tile of SharedPrefixes."""


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Decode rows whose caches begin with the same blocks: a tile of them reads those once.

    Tiles of one group follow each other; a row is in one tile or in none. Arrays keep their
    addresses, an unused tile has 0 rows.

    Args:
        order_R: (R,) int32 device; row numbers, those of a tile side by side.
        tiles: (Ti, 3) int32 device; [first place in order_R, rows, tokens that they share]. The
            tokens are whole entries of `DecodeRows.tables`, fewer than any of its rows has.
        tokens_R: (R,) int32 device; tokens that the row's tile covers, 0: it is in none.
    """

    order_R: torch.Tensor
    tiles: torch.Tensor
    tokens_R: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows of one query token each whose description stays on the device, at the same addresses.

    Metadata planned from it once serves every step of so many rows: the kernels read what the
    arrays hold when they run, and so may be captured into a graph. Rows that a step does not use
    are padded: one token, in a table that is all SENTINEL_BLOCK.

    Args:
        slots_R: (R,) int32 device; the line of `tables` of each row.
        lengths_R: (R,) int32 device; tokens that the row attends to, its own included: >= 1.
        positions_R: (R,) int64 device; lengths_R - 1.
        tables: (lines, M) int32 device; page ids where the backend's CacheDemand names pages (see
            AttentionBatch.page_tables), else block ids. Entries behind a row's last are undefined,
            as are those wholly before its window: never read their memory.
        entry_tokens: tokens of a page or block of `tables`.
        window: as in AttentionBatch.
        shared: rows with equal beginnings; a row's result is the same up to rounding. None: not
            looked for, or results must not depend on the other rows.
    """

    slots_R: torch.Tensor
    lengths_R: torch.Tensor
    positions_R: torch.Tensor
    tables: torch.Tensor
    entry_tokens: int
    window: int = 0
    shared: SharedPrefixes | None = None


class AttentionBackend(Protocol):
    """Required: plan, write, attend. One instance serves all layers of a cache group.

    Optional: `plan_decode(rows: DecodeRows) -> object`, metadata for `write` and `attend` of such
    rows (T = R) that launch the same work whatever the arrays hold; a backend without it is never
    captured into a graph. And `refresh(metadata, batch: AttentionBatch) -> None` beside it, where
    the host must prepare each step too: called before each replay, with the rows padded.

    An offer that lists v_head_dim is built with that keyword beside the others where values differ
    from keys in size. V below is v_head_dim, or H.
    """

    def plan(self, batch: AttentionBatch) -> object:
        """Prepare one step's metadata; the result is passed to `write` and `attend` unchanged."""
        ...

    def write(self, k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, metadata: object) -> None:
        """Store the step's keys and values at their positions; offsets are 64-bit.

        In a latent cache storing the keys stores the values.
        """
        ...

    def attend(
        self,
        q_TNH: torch.Tensor,
        kv: KVView,
        metadata: object,
        *,
        scale: float,
        sinks_N: torch.Tensor | None = None,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """Attend causally to each row's cache, the step's own tokens included.

        The batch's window limits what a token sees. Layers give `sinks_N` and `softcap` only where
        the group declares them.

        Args:
            q_TNH: (T, N, H) device, heads of a token contiguous; N is a multiple of K.
            scale: multiplies q.k before softmax.
            sinks_N: (N,) device, dtype of q; a logit beside the scores of each head that takes
                weight and gives nothing.
            softcap: scores s become softcap tanh(s / softcap); 0: none.
        Returns:
            (T, N, V), dtype and device of q.
        """
        ...
