"""MoE backends on plain torch: the kernels of operator `moe.experts` over a layer's own weights.

Legend: T tokens, X experts chosen a token, D hidden.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from tokenspeed_reference.kernels.linear import linear, linear_rowwise
from tokenspeed_reference.kernels.moe import experts
from tokenspeed_sdk import ExpertGroup, ExpertWeights

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class PlainExperts:
    """Computes expert by expert on any torch device; weights stay as they were stored.

    Args:
        group: the experts of the layers that it serves.
        dtype, device: of weights and activations; any will do.
        rowwise: multiply row by row: slow, and bitwise the same in every batch.
    """

    fuses_routing = False

    def __init__(
        self,
        group: ExpertGroup,
        *,
        dtype: torch.dtype,
        device: torch.device,
        rowwise: bool = False,
    ) -> None:
        self._clamped = group.clamped
        self._multiply: Callable[..., torch.Tensor] = linear_rowwise if rowwise else linear

    def prepare(self, weights: ExpertWeights) -> object:
        """Keep the weights as they are."""
        return weights

    def expert_tensors(self, prepared: object) -> list[torch.Tensor]:
        """Return the stacked weights: they are computed with as they lie."""
        assert isinstance(prepared, ExpertWeights), "not from `prepare`"
        tensors = (getattr(prepared, field.name) for field in fields(prepared))
        return [tensor for tensor in tensors if tensor is not None]

    def forward(
        self,
        x_TD: torch.Tensor,
        experts_TX: torch.Tensor,
        weights_TX: torch.Tensor,
        prepared: object,
    ) -> torch.Tensor:
        """Return (T, D): each token's experts, weighed and summed in float32."""
        assert isinstance(prepared, ExpertWeights), "not from `prepare`"
        return experts(
            x_TD,
            experts_TX,
            weights_TX,
            prepared.gate_up_EFD,
            prepared.down_EDF,
            prepared.gate_up_bias_EF,
            prepared.down_bias_ED,
            clamped=self._clamped,
            multiply=self._multiply,
        )
