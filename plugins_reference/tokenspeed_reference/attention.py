"""Paged attention in plain torch, for any device.

Legend: T query tokens, N query heads, K kv heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenspeed_reference.attention_chunks import Chunk, ChunkAttention, written_cells
from tokenspeed_sdk import AttentionBatch, KVView


@dataclass(frozen=True, slots=True)
class Plan:
    """One step, shared by all layers.

    Args:
        blocks_T, offsets_T: where each query token's key and value go.
    """

    blocks_T: torch.Tensor
    offsets_T: torch.Tensor
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
        self._device = device
        self._chunks = ChunkAttention(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_tokens=block_tokens,
            dtype=dtype,
            device=device,
        )

    def plan(self, batch: AttentionBatch) -> Plan:
        """Turn block tables into write positions, blocks and masks."""
        blocks, offsets = written_cells(batch)
        return Plan(
            blocks_T=torch.from_numpy(blocks).to(self._device),
            offsets_T=torch.from_numpy(offsets).to(self._device),
            chunks=self._chunks.plan(batch),
        )

    def write(self, k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, metadata: Plan) -> None:
        """Store the step's keys and values."""
        kv.k[metadata.blocks_T, :, metadata.offsets_T] = k_TKH
        kv.v[metadata.blocks_T, :, metadata.offsets_T] = v_TKH

    def attend(
        self, q_TNH: torch.Tensor, kv: KVView, metadata: Plan, *, scale: float
    ) -> torch.Tensor:
        """Attend each row to its own keys."""
        out_TNH = torch.empty_like(q_TNH)
        self._chunks.attend(out_TNH, q_TNH, kv, metadata.chunks, scale)
        return out_TNH
