"""What an attention backend computes, in plain words; tests compare backends with it.

The attention slot (`contracts/attention.py`) binds a backend object, not these operators: it
plans once a step. Legend: T query tokens, N query heads, K kv heads, H head dim, S cached tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.ops.declare import operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.attention import AttentionBatch, KVView


def rows_of(batch: AttentionBatch) -> Iterator[tuple[slice, int, Any]]:
    """Yield (query tokens, cached tokens before them, block table) of each row."""
    for row, context in enumerate(batch.context_tokens.tolist()):
        query = slice(int(batch.query_start[row]), int(batch.query_start[row + 1]))
        yield query, context, batch.block_tables[row].tolist()


@operator("kv.write")
def write_kv(k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, batch: AttentionBatch) -> None:
    """Store each token's key and value at its position: block p // block_tokens of its row.

    Args:
        k_TKH: (T, K, H) float, device.
        v_TKH: the same shape.
        kv: written in place.
    """
    for query, context, table in rows_of(batch):
        for token in range(query.start, query.stop):
            position = context + token - query.start
            block, offset = table[position // batch.block_tokens], position % batch.block_tokens
            kv.k[block, :, offset] = k_TKH[token].to(kv.k.dtype)
            kv.v[block, :, offset] = v_TKH[token].to(kv.v.dtype)


@operator("attention.paged")
def paged_attention(
    q_TNH: torch.Tensor,
    kv: KVView,
    batch: AttentionBatch,
    *,
    scale: float,
    sinks_N: torch.Tensor | None = None,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Attend each token to its row's cache at positions up to its own: softmax(scale q k) v.

    With a window the last `batch.window` positions are seen. A sink is one more score, whose value
    is zero.

    Args:
        q_TNH: (T, N, H) float, device; query head n reads kv head n * K // N.
        kv: holds the step's own tokens already; read only.
        sinks_N: (N,) float, or None.
        softcap: scores s become softcap tanh(s / softcap); 0: none.
    Returns:
        (T, N, H), dtype of q.
    Source: sinks: Efficient Streaming Language Models with Attention Sinks, Xiao et al. 2023;
        softcap: Gemma 2 report, 2024.
    """
    import torch

    out = torch.empty_like(q_TNH)
    group = q_TNH.shape[1] // kv.k.shape[1]
    for query, context, table in rows_of(batch):
        for token in range(query.start, query.stop):
            position = context + token - query.start
            first = max(0, position + 1 - batch.window) if batch.window else 0
            places = [divmod(seen, batch.block_tokens) for seen in range(first, position + 1)]
            k_NSH, v_NSH = (
                torch.stack([cache[table[block], :, offset] for block, offset in places], dim=1)
                .repeat_interleave(group, dim=0)
                .to(q_TNH.dtype)
                for cache in (kv.k, kv.v)
            )
            scores_NS = (k_NSH @ q_TNH[token][..., None]).squeeze(-1) * scale
            if softcap:
                scores_NS = softcap * (scores_NS / softcap).tanh()
            if sinks_N is not None:
                scores_NS = torch.cat([scores_NS, sinks_N[:, None]], dim=1)
            weights_NS = scores_NS.softmax(dim=1)[:, : len(places)]
            out[token] = (weights_NS[:, None] @ v_NSH).squeeze(1)
    return out
