"""Kernels of a step's inputs on the device: the same launches whatever the buffers hold.

Legend: R rows, F fields, G further fields, S slots, L lines, M places of a line, U updates.
"""

from __future__ import annotations

import torch

from tokenspeed_sdk import TOKEN_FROM_DEVICE


def prepare(
    rows_RF: torch.Tensor,
    last_tokens_S: torch.Tensor,
    token_ids_R: torch.Tensor,
    positions_R: torch.Tensor,
    lengths_R: torch.Tensor,
    slots_R: torch.Tensor,
    further_GR: torch.Tensor,
    *,
    vocab_size: int,
) -> None:
    """Write each buffer with one copy that casts."""
    slots_R.copy_(rows_RF[:, 0])
    positions_R.copy_(rows_RF[:, 1])
    torch.add(rows_RF[:, 1], 1, out=lengths_R)
    further_GR.copy_(rows_RF[:, 3:].T)
    last_R = last_tokens_S.index_select(0, slots_R)
    tokens_R = torch.where(rows_RF[:, 2] == TOKEN_FROM_DEVICE, last_R, rows_RF[:, 2])
    torch.clamp(tokens_R, 0, vocab_size - 1, out=token_ids_R)


def patch_tables(
    tables_LM: torch.Tensor,
    updates_U3: torch.Tensor,
    *,
    num_pages: int,
    per_block: int,
    step: int,
) -> None:
    """Write all pages with one index."""
    lines_U1, indices_U1, blocks_U1 = updates_U3.split_with_sizes((1, 1, 1), dim=1)
    pages = torch.arange(num_pages, dtype=torch.int32, device=tables_LM.device)
    places_UP = indices_U1 * num_pages + pages
    tables_LM[lines_U1, places_UP] = blocks_U1 * per_block + pages * step
