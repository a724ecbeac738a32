"""FlashInfer's wrapper of paged attention, planned once a step and run by every layer.

A wrapper keeps its plan in buffers of its own, the host's half of them pinned: a copy from there
may still wait in the stream when the next step is planned. So a wrapper is planned anew only when
nobody holds its last plan, and that plan's copy has been made.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from tokenspeed_nvidia.flashinfer.presence import LIBRARY

if TYPE_CHECKING:
    from tokenspeed_nvidia.flashinfer.pages import ChunkPages
    from tokenspeed_sdk import KVView

BACKEND = "fa3"
WORKSPACE_BYTES = 1 << 20
"""Partial results of chunks cut over their keys lie here; this backend cuts none, but asks."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Plan:
    """A step's chunks, planned. Its wrapper is free again when nobody holds the plan."""

    wrapper: Any
    num_tokens: int

    def attend(
        self, out_TNH: torch.Tensor, q_TNH: torch.Tensor, kv: KVView, *, scale: float
    ) -> None:
        """Attend each query token to its cache, causally.

        Args:
            out_TNH: (num_tokens, N, H) device, written.
            q_TNH: the same; the heads of a token contiguous.
        """
        # The plan's own scale is 1, and q_scale multiplies it: layers may differ in theirs.
        self.wrapper.run(q_TNH, (kv.k, kv.v), q_scale=scale, out=out_TNH)


class Plans:
    """Plans steps of one cache group on the current stream."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._shape = (num_heads, num_kv_heads, head_dim, block_tokens)
        self._dtype = dtype
        # Shared: runs of one stream follow each other.
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._free: list[tuple[Any, torch.cuda.Event]] = []

    def plan(self, pages: ChunkPages) -> Plan:
        """Plan a step's chunks; waits for the device in no case."""
        wrapper, is_copied = self._take()
        wrapper.plan(
            torch.from_numpy(pages.query_start),
            torch.from_numpy(pages.page_start),
            torch.from_numpy(pages.pages),
            torch.from_numpy(pages.last_page_tokens),
            *self._shape,
            causal=True,
            sm_scale=1.0,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )
        is_copied.record()
        plan = Plan(wrapper, pages.num_tokens)
        weakref.finalize(plan, self._free.append, (wrapper, is_copied))
        return plan

    def _take(self) -> tuple[Any, torch.cuda.Event]:
        for index, (_, is_copied) in enumerate(self._free):
            if is_copied.query():  # type: ignore[no-untyped-call]
                return self._free.pop(index)
        wrapper = import_module(LIBRARY).BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, "HND", backend=BACKEND
        )
        return wrapper, torch.cuda.Event()  # type: ignore[no-untyped-call]
