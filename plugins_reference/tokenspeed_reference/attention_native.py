"""Paged attention on the CPU in float32: writes and decode rows run natively, chunks in torch.

Legend: T query tokens, N query heads, K kv heads, G = N / K, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

# After torch: both must find one OpenMP runtime in the process, and torch brings its own.
from tokenspeed_reference import _cpu
from tokenspeed_reference.attention_plan import first_seen, plan_chunks, written_cells
from tokenspeed_reference.attention_prefill import Chunk, Scoring, prefill
from tokenspeed_sdk import AttentionBatch, KVView


@dataclass(frozen=True, slots=True)
class NativePlan:
    """One step, shared by all layers."""

    step: _cpu.DecodeStep
    chunks: tuple[Chunk, ...]


class NativePagedAttention:
    """AttentionBackend on the CPU; holds no state between steps."""

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
        assert (dtype, device.type) == (torch.float32, "cpu"), "the offer requires both"
        self._shape = (-1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        self._block_tokens = block_tokens
        self._device = device

    def plan(self, batch: AttentionBatch) -> NativePlan:
        """Copy the tables of the decode rows, and plan the chunks."""
        rows = batch.num_decode_rows
        step = _cpu.DecodeStep(
            *self._shape[1:],
            self._block_tokens,
            np.ascontiguousarray(batch.block_tables[:rows]),
            first_seen(batch)[:rows],
            batch.context_tokens[:rows] + 1,
            *written_cells(batch),
        )
        return NativePlan(step, plan_chunks(batch, torch.float32, self._device, first_row=rows))

    def write(
        self, k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, metadata: NativePlan
    ) -> None:
        """Store the step's keys and values."""
        block_stride, head_stride, token_stride, _ = kv.k.stride()
        assert token_stride == self._shape[3], "tokens of a head lie side by side"
        for cache, x_TKH in ((kv.k, k_TKH), (kv.v, v_TKH)):
            x_TKH = _with_dense_heads(x_TKH)
            metadata.step.write(
                cache.data_ptr(), block_stride, head_stride, x_TKH.data_ptr(), x_TKH.stride(0)
            )

    def attend(
        self,
        q_TNH: torch.Tensor,
        kv: KVView,
        metadata: NativePlan,
        *,
        scale: float,
        sinks_N: torch.Tensor | None = None,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """Attend each row to its own keys."""
        out_TNH = torch.empty(q_TNH.shape)
        block_stride, head_stride, _, _ = kv.k.stride()
        metadata.step.attend(
            out_TNH.data_ptr(),
            q_TNH.data_ptr(),
            q_TNH.stride(0),
            kv.k.data_ptr(),
            kv.v.data_ptr(),
            block_stride,
            head_stride,
            0 if sinks_N is None else sinks_N.data_ptr(),
            scale,
            softcap,
            torch.get_num_threads(),
        )
        if metadata.chunks:
            self._attend_chunks(out_TNH, q_TNH, kv, metadata.chunks, (scale, sinks_N, softcap))
        return out_TNH

    def _attend_chunks(
        self,
        out_TNH: torch.Tensor,
        q_TNH: torch.Tensor,
        kv: KVView,
        chunks: tuple[Chunk, ...],
        options: tuple[float, torch.Tensor | None, float],
    ) -> None:
        scale, sinks_N, softcap = options
        sinks_KG = None if sinks_N is None else sinks_N.view(self._shape[1:3])
        scoring = Scoring(scale, sinks_KG, softcap)
        out_TKGH, q_TKGH = out_TNH.view(self._shape), q_TNH.view(self._shape)
        for chunk in chunks:
            prefill(out_TKGH[chunk.query], q_TKGH[chunk.query], kv, chunk, scoring)


def _with_dense_heads(x_TKH: torch.Tensor) -> torch.Tensor:
    """Return x, copied unless the heads of a token lie side by side."""
    _, head_stride, stride = x_TKH.stride()
    is_dense = stride == 1 and head_stride == x_TKH.shape[2]
    return x_TKH if is_dense else x_TKH.contiguous()
