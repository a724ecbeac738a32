# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernels of moe.slots and moe.count: which slot computes a choice, and how many each has computed.

Both work on pairs of a token and a chosen expert, wait for nothing and read no count on the host,
so that a step whose experts lie in slots can be captured. Counts are integers: the order in which
programs add to them does not matter.
Legend: T tokens, X experts chosen a token, E experts, C copies of an expert, S slots of this rank.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 256
"""Pairs of a program."""


@triton.jit
def moe_slots_kernel(
    experts_ptr,
    slots_ptr,
    copies_ptr,
    out_ptr,
    num_pairs,
    CHOSEN: tl.constexpr,
    COPIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the slot of each pair: a token takes the copy that its place in the step names."""
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < num_pairs
    expert = tl.load(experts_ptr + pair, mask=inside, other=0)
    copies = tl.load(copies_ptr + expert, mask=inside, other=1)
    slot = tl.load(slots_ptr + expert * COPIES + pair // CHOSEN % copies, mask=inside, other=0)
    tl.store(out_ptr + pair, slot, mask=inside)


@triton.jit
def moe_count_kernel(
    slots_ptr,
    counts_ptr,
    out_ptr,
    num_pairs,
    first,
    num_slots,
    BLOCK: tl.constexpr,
):
    """Number slots from the rank's first one, and count them; others' by one addition a program."""
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < num_pairs
    own = tl.load(slots_ptr + pair, mask=inside, other=0) - first
    tl.store(out_ptr + pair, own, mask=inside)
    is_own = inside & (own >= 0) & (own < num_slots)
    tl.atomic_add(counts_ptr + own, tl.full([BLOCK], 1, tl.int64), mask=is_own, sem="relaxed")
    elsewhere = tl.sum((inside & (is_own == 0)).to(tl.int64))
    tl.atomic_add(counts_ptr + num_slots, elsewhere, sem="relaxed")


def slots(experts_TX: torch.Tensor, slots_EC: torch.Tensor, copies_E: torch.Tensor) -> torch.Tensor:
    """Compute moe.slots."""
    experts_TX = experts_TX.contiguous()
    out_TX = torch.empty_like(experts_TX)
    num_pairs = experts_TX.numel()
    if num_pairs:
        moe_slots_kernel[(triton.cdiv(num_pairs, BLOCK),)](
            experts_TX,
            slots_EC.contiguous(),
            copies_E,
            out_TX,
            num_pairs,
            CHOSEN=experts_TX.shape[1],
            COPIES=slots_EC.shape[1],
            BLOCK=BLOCK,
        )
    return out_TX


def count(slots_TX: torch.Tensor, counts_S: torch.Tensor, *, first: int) -> torch.Tensor:
    """Compute moe.count; `counts_S` is raised in place."""
    slots_TX = slots_TX.contiguous()
    own_TX = torch.empty_like(slots_TX)
    num_pairs = slots_TX.numel()
    if num_pairs:
        moe_count_kernel[(triton.cdiv(num_pairs, BLOCK),)](
            slots_TX, counts_S, own_TX, num_pairs, first, len(counts_S) - 1, BLOCK=BLOCK
        )
    return own_TX
