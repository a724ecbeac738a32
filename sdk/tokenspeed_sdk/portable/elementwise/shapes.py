"""Tensors as rows of heads, the shape that the kernels of this family walk over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def heads_of(x: torch.Tensor) -> tuple[torch.Tensor, int, int, int, int]:
    """Return a tensor's rows: (x, rows, heads, token stride, head stride).

    Row r begins r // heads token strides and r % heads head strides behind the first element.

    Args:
        x: (..., D), last axis contiguous; more than two axes before it are copied where no view
            has them as two.
    """
    shape = x.shape
    if len(shape) == 2:
        return x, shape[0], 1, x.stride(0), 0
    if len(shape) == 1:
        return x, 1, 1, 0, 0
    if len(shape) > 3:
        x = x.reshape(math.prod(shape[:-2]), *shape[-2:])
    tokens, heads, _ = x.shape
    return x, tokens * heads, heads, x.stride(0), x.stride(1)
