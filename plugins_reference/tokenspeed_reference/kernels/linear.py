"""Kernels of linear.dense, linear.heads and embedding.lookup.

Legend: T tokens, O outputs, I inputs, N heads, V words.
"""

from __future__ import annotations

import torch

linear = torch.nn.functional.linear
"""Fastest, but a row's rounding depends on how many rows are multiplied with it."""


def linear_rowwise(
    x_TI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply row by row: slow, and bitwise the same in every batch.

    Each row is multiplied from the same place: some libraries round by the alignment of what they
    read.
    """
    out_TO = x_TI.new_empty(x_TI.shape[0], weight_OI.shape[0])
    row_1I = x_TI.new_empty(1, x_TI.shape[1])
    for row, x_I in enumerate(x_TI):
        row_1I[0] = x_I
        out_TO[row] = linear(row_1I, weight_OI, bias_O)
    return out_TO


def heads_linear(x_TNI: torch.Tensor, weight_NOI: torch.Tensor) -> torch.Tensor:
    """Multiply head by head, all tokens at once."""
    return torch.bmm(x_TNI.transpose(0, 1), weight_NOI.mT).transpose(0, 1)


def heads_linear_rowwise(x_TNI: torch.Tensor, weight_NOI: torch.Tensor) -> torch.Tensor:
    """Multiply token by token, each from the same place: slow, and the same in every batch."""
    out_TNO = x_TNI.new_empty(*x_TNI.shape[:2], weight_NOI.shape[1])
    row_NI1 = x_TNI.new_empty(*x_TNI.shape[1:], 1)
    for row, x_NI in enumerate(x_TNI):
        row_NI1[..., 0] = x_NI
        out_TNO[row] = torch.bmm(weight_NOI, row_NI1).squeeze(-1)
    return out_TNO


def embedding(token_ids_T: torch.Tensor, weight_VD: torch.Tensor) -> torch.Tensor:
    """Take rows by clamped id, and clear those whose id is another one."""
    ids_T = token_ids_T.long()
    near_T = ids_T.clamp(0, weight_VD.shape[0] - 1)
    return weight_VD[near_T].masked_fill_((near_T != ids_T)[:, None], 0.0)
