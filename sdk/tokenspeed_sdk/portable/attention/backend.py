"""AttentionBackend in Triton: plans a step, stores keys and values, attends to them.

Legend: T query tokens, N query heads, K kv heads, H head dim, V value dim, R rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed_sdk.portable.attention import chunks, merge, preparing, rows, writing
from tokenspeed_sdk.portable.attention.geometry import Geometry, Scores
from tokenspeed_sdk.portable.attention.steps import Step, step_of_batch, step_of_rows
from tokenspeed_sdk.portable.attention.tuning import cut_for, device_of

if TYPE_CHECKING:
    from tokenspeed_sdk import AttentionBatch, DecodeRows, KVView
    from tokenspeed_sdk.portable.attention.preparing import HeadNorm
    from tokenspeed_sdk.portable.attention.tuning import Cut


class PortablePagedAttention:
    """Paged attention on any device that triton compiles for; holds no state between steps.

    A row's result does not depend on the other rows, bit by bit; but a row that is in a tile of
    SharedPrefixes is summed in another order than alone.

    Args:
        cut: how caches are cut into parts; None: as the device and the heads ask for.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        v_head_dim: int = 0,
        cut: Cut | None = None,
    ) -> None:
        self._device = device
        limits = device_of(device)
        geometry = Geometry(
            num_heads,
            num_kv_heads,
            head_dim,
            v_head_dim or head_dim,
            dtype.itemsize,
            limits,
            cut or cut_for(limits, num_kv_heads),
        )
        self._geometry = geometry

    def plan(self, batch: AttentionBatch) -> Step:
        """Copy what the kernels read of the step to the device."""
        return step_of_batch(batch, self._geometry, self._device)

    def plan_decode(self, rows: DecodeRows) -> Step:
        """Describe rows that stay on the device; may be captured into a graph."""
        return step_of_rows(rows)

    def write(self, k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, metadata: Step) -> None:
        """Store the step's keys and values."""
        writing.write(k_TKH, v_TKH, kv, metadata.places)

    def prepare(
        self,
        q_TNH: torch.Tensor,
        k_TKH: torch.Tensor,
        v_TKH: torch.Tensor,
        kv: KVView,
        metadata: Step,
        *,
        q_norm: HeadNorm | None = None,
        k_norm: HeadNorm | None = None,
        rotary: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Normalise and rotate queries and keys, and store keys and values, in one launch.

        The same as norm.rms (or norm.centred_rms) of each head, rotary.apply of queries and keys,
        and `write`, but rounded once. May be captured into a graph as `write` may.

        Args:
            q_TNH: (T, N, H) device, the dims of a head contiguous; read only.
            k_TKH: (T, K, H) the same; read only.
            v_TKH: (T, K, V) the same; stored as it is.
            kv: written in place at the positions of the step's tokens.
            metadata: of `plan` or `plan_decode`.
            q_norm, k_norm: of query and of key heads; None: none.
            rotary: (T, 1, A) cosines and sines as rotary.angles makes them; None: not rotated.
        Returns:
            (T, N, H), contiguous: the queries for `attend`.
        """
        given = (q_TNH, k_TKH, v_TKH, kv, metadata.places)
        return preparing.rotate_and_write(*given, q_norm=q_norm, k_norm=k_norm, rotary=rotary)

    def attend(
        self,
        q_TNH: torch.Tensor,
        kv: KVView,
        metadata: Step,
        *,
        scale: float,
        sinks_N: torch.Tensor | None = None,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """Attend each row to its own keys; decode rows first, then chunks, each a launch or two."""
        out_TNV = q_TNH.new_empty(*q_TNH.shape[:2], self._geometry.value_dim)
        scores = Scores(scale, softcap, sinks_N)
        if metadata.rows.num_rows:
            self._attend_rows(out_TNV, q_TNH, kv, metadata, scores)
        for launch in metadata.chunks.launches:
            if not launch.num_items:
                continue
            parts = self._parts(out_TNV, launch.num_slots)
            given = (kv, metadata.chunks, launch, self._geometry, scores)
            chunks.attend_chunks(out_TNV, parts, q_TNH, *given)
            if launch.num_split_tokens:
                merge.merge_chunks(out_TNV, parts, launch, self._geometry, scores)
        return out_TNV

    def _attend_rows(
        self,
        out_TNV: torch.Tensor,
        q_TNH: torch.Tensor,
        kv: KVView,
        metadata: Step,
        scores: Scores,
    ) -> None:
        own = metadata.rows
        parts = self._parts(out_TNV, own.num_rows * own.slots_a_row(self._geometry.cut))
        if own.shared:
            rows.attend_shared(parts, q_TNH, kv, own, own.shared, self._geometry, scores)
        rows.attend_rows(parts, q_TNH, kv, own, self._geometry, scores)
        merge.merge_rows(out_TNV, parts, kv, own, self._geometry, scores)

    def _parts(self, beside: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return room for partial results: out (slots, N, V) and lse (slots, N) float32."""
        num_lse = slots * self._geometry.num_heads
        num_out = num_lse * self._geometry.value_dim
        both = beside.new_empty(num_out + num_lse, dtype=torch.float32)
        return both[:num_out], both[num_out:]
