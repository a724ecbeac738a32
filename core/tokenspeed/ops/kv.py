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
    q_TNH: torch.Tensor, kv: KVView, batch: AttentionBatch, *, scale: float
) -> torch.Tensor:
    """Attend each token to its row's cache at positions up to its own: softmax(scale q k) v.

    Args:
        q_TNH: (T, N, H) float, device; query head n reads kv head n * K // N.
        kv: holds the step's own tokens already; read only.
    Returns:
        (T, N, H), dtype of q.
    """
    import torch

    out = torch.empty_like(q_TNH)
    group = q_TNH.shape[1] // kv.k.shape[1]
    for query, context, table in rows_of(batch):
        k_KSH = kv.k[table].transpose(0, 1).flatten(1, 2).repeat_interleave(group, dim=0)
        v_KSH = kv.v[table].transpose(0, 1).flatten(1, 2).repeat_interleave(group, dim=0)
        for token in range(query.start, query.stop):
            seen = context + token - query.start + 1
            scores = k_KSH[:, :seen].to(q_TNH.dtype) @ q_TNH[token][..., None] * scale
            weights = scores.softmax(dim=1).transpose(1, 2)
            out[token] = (weights @ v_KSH[:, :seen].to(q_TNH.dtype)).squeeze(1)
    return out
