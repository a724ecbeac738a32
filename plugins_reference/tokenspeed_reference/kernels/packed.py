"""Kernels of linear.packed and embedding.packed.

On the CPU a weight becomes 4-bit planes for torch's own packed product, which reads bfloat16
activations; its result for a row does not depend on the other rows. Elsewhere it is expanded for
each call. Legend: T tokens, O outputs, I inputs, G groups of GROUP inputs, B bytes a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear, pad

from tokenspeed_sdk import LinearWeight, ops

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = 32
"""Inputs that share a scale in torch's packed product; its smallest."""
ROW_MULTIPLE = 64
"""Outputs are padded to a multiple of it: torch packs blocks of 16, 32 or 64 by machine."""


def packed_linear_int4(
    weight: LinearWeight, bias_O: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Prepare a product on the CPU: one 4-bit plane, or two for layouts of more bits."""
    ints = ops.packing.unpack(weight.packing, weight.packed["data"])
    if weight.packing in ("q8_0", "q6_k"):
        q_OI, scale_OG, zero_OG = _two_planes(ints)
        num_planes = 2
    else:
        # The product computes (q - 8) * scale + zero on q in [0, 16).
        q_OI, scale_OG, num_planes = ints.q_OI, ints.scale_OG, 1
        zero_OG = ints.offset_OG + 8 * scale_OG
    packed, scale_zero_GO2 = _pack(q_OI, scale_OG, zero_OG)
    outputs, is_padded = weight.shape[0], weight.shape[0] % ROW_MULTIPLE != 0

    def multiply(x_TI: torch.Tensor) -> torch.Tensor:
        x = x_TI.bfloat16()
        if num_planes == 2:
            x = torch.cat((x, x), dim=-1)
        product = torch._weight_int4pack_mm_for_cpu(x, packed, GROUP, scale_zero_GO2)
        if is_padded:
            product = product[:, :outputs]
        y_TO = product.type_as(x_TI)
        return y_TO if bias_O is None else y_TO.add_(bias_O)

    return multiply


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
        rows_TB = data_VB[token_ids_T.clamp(0, last)]
        return ops.packing.unpack(packing, rows_TB).dense(torch.float32).to(dtype)

    return look_up


def _two_planes(
    ints: ops.packing.GroupedInts,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split 8-bit integers into 16 * high + low, as two planes beside each other along I.

    q8_0 is kept exactly. q6_k has a scale per 16 inputs: it is rounded to 8 bits per 32, an error
    of an eighth of its own step.
    """
    if ints.group_inputs == GROUP:
        q_OI, scale_OG = ints.q_OI, ints.scale_OG
    else:
        dense_OGI = ints.dense(torch.float32).view(ints.q_OI.shape[0], -1, GROUP)
        scale_OG = dense_OGI.abs().amax(dim=-1) / 127
        divisor = torch.where(scale_OG == 0, 1, scale_OG)[..., None]
        q_OI = (dense_OGI / divisor).round().to(torch.int16).flatten(1)
    planes = torch.cat(((q_OI >> 4) + 8, q_OI & 15), dim=1)
    scales = torch.cat((16 * scale_OG, scale_OG), dim=1)
    return planes, scales, torch.cat((torch.zeros_like(scale_OG), 8 * scale_OG), dim=1)


def _pack(
    q_OI: torch.Tensor, scale_OG: torch.Tensor, zero_OG: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bring a plane into torch's layout; rows that pad it are zero."""
    q_OI = q_OI.to(torch.int32)
    scale_zero_OG2 = torch.stack((scale_OG, zero_OG), dim=-1).to(torch.bfloat16)
    missing = -q_OI.shape[0] % ROW_MULTIPLE
    if missing:
        q_OI = pad(q_OI, (0, 0, 0, missing))
        scale_zero_OG2 = pad(scale_zero_OG2, (0, 0, 0, 0, 0, missing))
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q_OI, 1)
    return packed, scale_zero_OG2.transpose(0, 1).contiguous()
