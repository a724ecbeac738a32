"""Kernels of linear.packed and embedding.packed: what is needed is expanded for each call.

Legend: T tokens, V words, O outputs, I inputs, B bytes a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from tokenspeed_sdk import LinearWeight, ops

if TYPE_CHECKING:
    from collections.abc import Callable


def packed_linear_expand(
    weight: LinearWeight, bias_O: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Prepare a product on any device: the weight is expanded for each call and dropped again."""
    packing, data_OB = weight.packing, weight.packed["data"]

    def multiply(x_TI: torch.Tensor) -> torch.Tensor:
        dense_OI = ops.packing.unpack(packing, data_OB).dense(x_TI.dtype)
        return linear(x_TI, dense_OI, bias_O)

    return multiply


def packed_embedding(
    weight: LinearWeight, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Prepare look-ups: only the rows asked for are expanded."""
    packing, data_VB = weight.packing, weight.packed["data"]
    last = weight.shape[0] - 1

    def look_up(token_ids_T: torch.Tensor) -> torch.Tensor:
        near_T = token_ids_T.clamp(0, last)
        rows_TD = ops.packing.unpack(packing, data_VB[near_T]).dense(torch.float32)
        return rows_TD.masked_fill_((near_T != token_ids_T)[:, None], 0.0).to(dtype)

    return look_up
