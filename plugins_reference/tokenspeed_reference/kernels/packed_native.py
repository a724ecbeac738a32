"""Native kernel of linear.packed: 4 or 8 bit integers times activations rounded to 16 bits.

Every layout keeps its groups of 32 (q6_k: 16) inputs, and its scales in half precision, which is
how all but q4_k and q6_k store them. Legend: T tokens, O outputs, I inputs, G groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed_reference import _cpu
from tokenspeed_sdk import LinearWeight, ops

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

MAX_ROWS = 256
"""Rows of one call: bounds the scratch of rounded activations."""


def packed_linear(
    weight: LinearWeight, bias_O: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Lay a weight out for the product; its result for a row does not depend on other rows."""
    packed = _lay_out(weight)
    outputs = weight.shape[0]
    bias = None if bias_O is None else bias_O.float()

    def multiply(x_TI: torch.Tensor) -> torch.Tensor:
        x = x_TI.float()
        if x.stride(1) != 1:
            x = x.contiguous()
        rows = x.shape[0]
        y_TO = torch.empty(rows, outputs)
        for first in range(0, rows, MAX_ROWS):
            packed.multiply(
                y_TO.data_ptr() + 4 * outputs * first,
                x.data_ptr() + 4 * x.stride(0) * first,
                x.stride(0),
                min(MAX_ROWS, rows - first),
                0 if bias is None else bias.data_ptr(),
                torch.get_num_threads(),
            )
        return y_TO.type_as(x_TI)

    return multiply


def _lay_out(weight: LinearWeight) -> _cpu.PackedWeight:
    ints = ops.packing.unpack(weight.packing, weight.packed["data"])
    scales_OG, offsets_OG = _halves(ints.scale_OG), _halves(ints.offset_OG)
    bits = 4 if weight.packing.startswith("q4") else 8
    q_OI = ints.q_OI.contiguous().numpy()
    return _cpu.PackedWeight(bits, ints.group_inputs, q_OI, scales_OG, offsets_OG)


def _halves(x_OG: torch.Tensor) -> NDArray[np.int16]:
    """Return the bits of half precision."""
    bits: NDArray[np.int16] = x_OG.half().contiguous().view(torch.int16).numpy()
    return bits
