"""Kernel of logits.mask. Legend: R rows, V vocabulary, W words of 32 bits."""

from __future__ import annotations

import torch


def mask_logits(logits_RV: torch.Tensor, allowed_RW: torch.Tensor) -> torch.Tensor:
    """Spread the bits of each word over 32 tokens."""
    shifts = torch.arange(32, dtype=torch.int32, device=allowed_RW.device)
    bits_RV = (allowed_RW[..., None] >> shifts).flatten(1)[:, : logits_RV.shape[1]]
    return logits_RV.masked_fill_(bits_RV & 1 == 0, -torch.inf)
