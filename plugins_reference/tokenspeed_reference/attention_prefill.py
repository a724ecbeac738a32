"""Attention of one row: its blocks are gathered, and attended in one call.

Legend: T query tokens, K kv heads, G query heads of each, H head dim, V value dim,
S keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from tokenspeed_sdk import KVView

MASK_ELEMENTS = 1 << 21
"""Elements of one mask at most (8 MiB in float32): longer chunks go in query tiles."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row: its query tokens, and the blocks that they see.

    Args:
        first_key, num_keys: the cells of the blocks that are seen; no other one is read.
        mask_TS: see `make_mask`; None where plain causality will do.
    """

    query: slice
    first_key: int
    num_keys: int
    blocks: tuple[int, ...]
    mask_TS: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer scores keys; see AttentionBackend.attend."""

    scale: float
    sinks_KG: torch.Tensor | None = None
    softcap: float = 0.0

    def attend(
        self,
        q_GKTH: torch.Tensor,
        k_GKSH: torch.Tensor,
        v_GKSV: torch.Tensor,
        mask_TS: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attend T tokens to S keys; without a mask causally, T being S or 1."""
        causal = mask_TS is None and q_GKTH.shape[2] > 1
        if self.sinks_KG is None and not self.softcap:
            return scaled_dot_product_attention(
                q_GKTH, k_GKSH, v_GKSV, attn_mask=mask_TS, is_causal=causal, scale=self.scale
            )
        scores = q_GKTH.float() @ k_GKSH.float().mT * self.scale
        if self.softcap:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if causal:
            future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
            scores.masked_fill_(future, -torch.inf)
        elif mask_TS is not None:
            scores += mask_TS
        weights = scores.softmax(-1)
        if self.sinks_KG is not None:
            total_GKT = scores.logsumexp(-1)
            weights *= share_beside(total_GKT, self.sinks_KG.T[..., None])[..., None]
        return (weights @ v_GKSV.float()).type_as(q_GKTH)


def share_beside(total: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Return what a sink leaves of a softmax whose scores have this logsumexp."""
    return torch.sigmoid(total - sinks.float())


def make_mask(
    num_tokens: int, num_keys: int, window: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return (tile, num_keys): zeros, and -inf in the future and before the window.

    Aligned at its lower right corner: a tile of queries that sees `seen` keys takes the last `seen`
    columns, so that one mask serves every tile of the chunk.
    """
    tile = min(num_tokens, max(16, MASK_ELEMENTS // num_keys))
    hidden = torch.ones(tile, num_keys, dtype=torch.bool, device=device)
    future = hidden.triu(num_keys - tile + 1)
    past = hidden.tril(num_keys - tile - window) if window else torch.zeros_like(hidden)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(
        future | past, -torch.inf
    )


def prefill(
    out_TKGV: torch.Tensor, q_TKGH: torch.Tensor, kv: KVView, chunk: Chunk, scoring: Scoring
) -> None:
    """Attend one chunk; the heads that share keys form the batch axis, with stride 0 keys."""
    num_tokens, _, queries_per_kv, _ = q_TKGH.shape
    k_KSH, v_KSV = _gather(kv.k, chunk), _gather(kv.v, chunk)
    k_GKSH = k_KSH.expand(queries_per_kv, *k_KSH.shape)
    v_GKSV = v_KSV.expand(queries_per_kv, *v_KSV.shape)
    q_GKTH, out_GKTV = q_TKGH.permute(2, 1, 0, 3), out_TKGV.permute(2, 1, 0, 3)
    if chunk.mask_TS is None:
        out_GKTV.copy_(scoring.attend(q_GKTH, k_GKSH, v_GKSV, None))
        return
    tile = chunk.mask_TS.shape[0]
    for first in range(0, num_tokens, tile):
        last = min(first + tile, num_tokens)
        seen = chunk.num_keys - (num_tokens - last)
        out_GKTV[:, :, first:last] = scoring.attend(
            q_GKTH[:, :, first:last],
            k_GKSH[:, :, :seen],
            v_GKSV[:, :, :seen],
            chunk.mask_TS[tile - (last - first) :, chunk.num_keys - seen :],
        )


def _gather(blocks: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    """Return the chunk's keys or values as (K, S, H): a view of one block, a copy of several."""
    parts = [blocks[block] for block in chunk.blocks]
    joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return joined.narrow(1, chunk.first_key, chunk.num_keys)
