"""The experts of mixture-of-experts models, bitwise the same in every batch, and fit for graphs.

Legend: T tokens, X experts chosen a token, D hidden, F features, C choices.
"""

from __future__ import annotations

import torch

from tokenspeed_reference.kernels.moe import gated
from tokenspeed_reference.moe import PlainExperts
from tokenspeed_sdk import ExpertWeights

CHUNK_CHOICES = 32
"""Choices of experts whose weights are gathered at once, a copy for each."""


class Experts(PlainExperts):
    """MoEBackend that gathers weights by choice: which expert that is, the host never knows."""

    def forward(
        self,
        x_TD: torch.Tensor,
        experts_TX: torch.Tensor,
        weights_TX: torch.Tensor,
        prepared: object,
    ) -> torch.Tensor:
        """Return (T, D)."""
        assert isinstance(prepared, ExpertWeights), "not from `prepare`"
        num_choices = experts_TX.shape[1]
        x_CD = x_TD.repeat_interleave(num_choices, dim=0)
        result_CD = x_CD.new_empty(x_CD.shape, dtype=torch.float32)
        for first in range(0, len(x_CD), CHUNK_CHOICES):
            chunk = slice(first, first + CHUNK_CHOICES)
            chosen_C = experts_TX.flatten()[chunk]
            result_CD[chunk] = self._chosen(x_CD[chunk], chosen_C, prepared)
        weighed_TXD = (
            result_CD.view(*experts_TX.shape, x_TD.shape[1]) * weights_TX.float()[..., None]
        )
        return weighed_TXD.sum(1).type_as(x_TD)

    def _chosen(
        self, x_CD: torch.Tensor, chosen_C: torch.Tensor, weights: ExpertWeights
    ) -> torch.Tensor:
        near_C = chosen_C.clamp(0, len(weights.down_EDF) - 1)
        gate_up_CF = _multiply(x_CD, weights.gate_up_EFD, weights.gate_up_bias_EF, near_C)
        result_CD = _multiply(
            gated(gate_up_CF, self._clamped), weights.down_EDF, weights.down_bias_ED, near_C
        )
        return result_CD.masked_fill((near_C != chosen_C)[:, None], 0)  # another rank has those


def _multiply(
    x_CI: torch.Tensor, weight_EOI: torch.Tensor, bias_EO: torch.Tensor | None, at_C: torch.Tensor
) -> torch.Tensor:
    """Multiply each row by its own weight, (C, O)."""
    out_CO = torch.bmm(weight_EOI[at_C], x_CI[..., None]).squeeze(-1)
    return out_CO if bias_EO is None else out_CO + bias_EO[at_C]
