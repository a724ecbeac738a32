# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernel of moe.add_shared: the expert that every token has. Legend: T tokens, D hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

BLOCK = 1024


@triton.jit
def moe_add_shared_kernel(
    routed_ptr, shared_ptr, gate_ptr, hidden, HAS_GATE: tl.constexpr, BLOCK: tl.constexpr
):
    """Add BLOCK features of one token in place."""
    token = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = feature < hidden
    at = token * hidden + feature
    total = tl.load(routed_ptr + at, mask=inside, other=0.0).to(tl.float32)
    shared = tl.load(shared_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_GATE:
        gate = tl.load(gate_ptr + token).to(tl.float32)
        shared = shared / (1 + tl.exp(-gate))
    total += shared
    tl.store(routed_ptr + at, total.to(routed_ptr.dtype.element_ty), mask=inside)


def add_shared(
    routed_TD: torch.Tensor, shared_TD: torch.Tensor, gate_T1: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute moe.add_shared, over the routed result."""
    tokens, hidden = routed_TD.shape
    routed_TD, shared_TD = routed_TD.contiguous(), shared_TD.contiguous()
    if tokens:
        gate = None if gate_T1 is None else gate_T1.contiguous()
        grid = (tokens, triton.cdiv(hidden, BLOCK))
        moe_add_shared_kernel[grid](
            routed_TD, shared_TD, gate, hidden, HAS_GATE=gate is not None, BLOCK=BLOCK
        )
    return routed_TD
