# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Masks over logits, in place. Legend: R rows, V vocabulary, W words of 32 bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

WORDS = 64
"""Words of a program: 2048 logits, of which those that are forbidden are written, none is read."""


def mask_logits(logits_RV: torch.Tensor, allowed_RW: torch.Tensor) -> torch.Tensor:
    """Compute logits.mask."""
    rows, vocab_size = logits_RV.shape
    if rows:
        words = min(WORDS, triton.next_power_of_2(allowed_RW.shape[1]))
        forbid_words[(rows, triton.cdiv(vocab_size, words * 32))](
            logits_RV,
            allowed_RW,
            logits_RV.stride(0),
            allowed_RW.stride(0),
            vocab_size,
            TILE=words,
        )
    return logits_RV


@triton.jit
def forbid_words(
    logits_ptr, allowed_ptr, logits_stride, allowed_stride, vocab_size, TILE: tl.constexpr
):
    """Forbid what TILE words of one row do not allow."""
    row = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * TILE + tl.arange(0, TILE)
    known = words * 32 < vocab_size
    allowed = tl.load(allowed_ptr + row * allowed_stride + words, mask=known, other=0)
    bits = tl.arange(0, 32)[None, :]
    ids = words[:, None] * 32 + bits
    is_forbidden = ((allowed[:, None] >> bits) & 1) == 0
    nothing = tl.full((TILE, 32), float("-inf"), tl.float32).to(logits_ptr.dtype.element_ty)
    tl.store(
        logits_ptr + row * logits_stride + ids, nothing, mask=is_forbidden & (ids < vocab_size)
    )
