"""Kernel of conv.causal_silu. Legend: T tokens, R rows, B blocks, C channels, W taps, P = W - 1."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import conv1d, silu

from tokenspeed_reference.kernels.state import read_rows, split_rows
from tokenspeed_sdk import StateRows


def causal_conv(
    x_TC: torch.Tensor,
    weight_CW: torch.Tensor,
    state_BCP: torch.Tensor,
    rows: StateRows,
    query_start: Any,
) -> torch.Tensor:
    """Convolve rows of one token together, longer ones alone; in float32."""
    weight = weight_CW.float()
    past_RCP = read_rows(state_BCP, rows).float()
    out_TC = torch.empty_like(x_TC)
    singles, longer = split_rows(query_start, x_TC.device)
    if singles is not None:
        inputs = torch.cat((past_RCP[singles.rows], x_TC[singles.tokens, :, None].float()), dim=-1)
        out_TC[singles.tokens] = silu((inputs * weight).sum(-1)).type_as(x_TC)
        state_BCP[rows.write_R[singles.rows]] = inputs[..., 1:].type_as(state_BCP)
    for row, tokens in longer:
        inputs = torch.cat((past_RCP[row], x_TC[tokens].T.float()), dim=-1)
        total = conv1d(inputs[None], weight[:, None], groups=len(weight))[0]
        out_TC[tokens] = silu(total).T.type_as(x_TC)
        last = inputs[:, inputs.shape[-1] - past_RCP.shape[-1] :]
        state_BCP[rows.write_R[row]] = last.type_as(state_BCP)
    return out_TC
