"""The MoE backend over these kernels. Legend: T tokens, X chosen experts, D hidden, E experts."""

from __future__ import annotations

from dataclasses import fields

import torch
import triton

from tokenspeed_sdk import ExpertGroup, ExpertWeights
from tokenspeed_sdk.portable.experts.products import (
    moe_down_kernel,
    moe_gate_up_kernel,
    moe_sum_kernel,
)
from tokenspeed_sdk.portable.experts.route import route
from tokenspeed_sdk.portable.experts.sorting import sort_pairs
from tokenspeed_sdk.portable.experts.tiles import Tiles, invariant_tiles, tiles_for

SUM_BLOCK = 1024


class GroupedExperts:
    """Reads each chosen expert once, with all tokens that chose it; nothing waits for the host.

    What stands between the products, and what is summed, is rounded to the dtype.

    Args:
        group: the experts of the layers that it serves.
        dtype, device: of weights and activations.
        is_invariant: sum a row alike in every batch, with tiles that suit none.
    """

    fuses_routing = True

    def __init__(
        self,
        group: ExpertGroup,
        *,
        dtype: torch.dtype,
        device: torch.device,
        is_invariant: bool = False,
    ) -> None:
        self._routing = group.routing
        self._clamped = group.clamped
        self._is_exact = dtype == torch.float32
        self._is_invariant = is_invariant

    def prepare(self, weights: ExpertWeights) -> object:
        """Keep the weights as they are."""
        return weights

    def expert_tensors(self, prepared: object) -> list[torch.Tensor]:
        """Return the stacked weights: they are computed with as they lie."""
        assert isinstance(prepared, ExpertWeights), "not from `prepare`"
        tensors = (getattr(prepared, field.name) for field in fields(prepared))
        return [tensor for tensor in tensors if tensor is not None]

    def route_and_forward(
        self, x_TD: torch.Tensor, logits_TE: torch.Tensor, prepared: object
    ) -> torch.Tensor:
        """Return (T, D): the experts that the logits choose, weighed and summed."""
        weights_TX, experts_TX = route(logits_TE, routing=self._routing)
        return self.forward(x_TD, experts_TX, weights_TX, prepared)

    def forward(
        self,
        x_TD: torch.Tensor,
        experts_TX: torch.Tensor,
        weights_TX: torch.Tensor,
        prepared: object,
    ) -> torch.Tensor:
        """Return (T, D): each token's experts, weighed and summed."""
        assert isinstance(prepared, ExpertWeights), "not from `prepare`"
        out_TD = x_TD.new_empty(x_TD.shape)
        if not len(x_TD):
            return out_TD
        experts_TX, weights_TX = experts_TX.contiguous(), weights_TX.contiguous()
        tiles = self._tiles(experts_TX, len(prepared.down_EDF))
        results_PD = self._results(x_TD, experts_TX, weights_TX, prepared, tiles)
        self._sum(results_PD, experts_TX, out_TD, len(prepared.down_EDF))
        return out_TD

    def _tiles(self, experts_TX: torch.Tensor, num_experts: int) -> Tiles:
        tokens, top_k = experts_TX.shape
        if self._is_invariant:
            return invariant_tiles(tokens, is_exact=self._is_exact)
        return tiles_for(tokens, top_k, num_experts, is_exact=self._is_exact)

    def _results(
        self,
        x_TD: torch.Tensor,
        experts_TX: torch.Tensor,
        weights_TX: torch.Tensor,
        held: ExpertWeights,
        tiles: Tiles,
    ) -> torch.Tensor:
        """Return (pairs, D): what each chosen expert adds; rows of others' experts are not set."""
        num_experts, hidden, features = held.down_EDF.shape
        num_pairs, top_k = experts_TX.numel(), experts_TX.shape[1]
        if tiles.is_sorted:
            work, num_tiles = sort_pairs(experts_TX, num_experts, tiles)
        else:
            work, num_tiles = None, min(num_pairs, num_experts)
        alpha, limit = 0.0, 0.0
        if self._clamped is not None:
            alpha, limit = self._clamped.alpha, self._clamped.limit
        constants = {
            "SORTED": tiles.is_sorted,
            "BY_EXPERT": num_pairs >= num_experts,
            "TOP_K": top_k,
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n,
            "BLOCK_K": tiles.block_k,
            "BLOCK_X": triton.next_power_of_2(top_k),
            "num_warps": tiles.num_warps,
            "num_stages": tiles.num_stages,
        }
        hidden_PF = x_TD.new_empty(num_pairs, features)
        moe_gate_up_kernel[(num_tiles * triton.cdiv(features, tiles.block_n // 2),)](
            x_TD,
            experts_TX,
            work,
            held.gate_up_EFD,
            held.gate_up_bias_EF,
            hidden_PF,
            x_TD.stride(0),
            num_pairs,
            num_experts,
            num_tiles,
            hidden,
            features,
            alpha,
            limit,
            CLAMPED=self._clamped is not None,
            HAS_BIAS=held.gate_up_bias_EF is not None,
            EVEN_K=hidden % tiles.block_k == 0,
            **constants,
        )
        results_PD = x_TD.new_empty(num_pairs, hidden)
        moe_down_kernel[(num_tiles * triton.cdiv(hidden, tiles.block_n),)](
            hidden_PF,
            experts_TX,
            work,
            held.down_EDF,
            held.down_bias_ED,
            weights_TX,
            results_PD,
            num_pairs,
            num_experts,
            num_tiles,
            features,
            hidden,
            HAS_BIAS=held.down_bias_ED is not None,
            EVEN_K=features % tiles.block_k == 0,
            **constants,
        )
        return results_PD

    def _sum(
        self,
        results_PD: torch.Tensor,
        experts_TX: torch.Tensor,
        out_TD: torch.Tensor,
        num_experts: int,
    ) -> None:
        tokens, hidden = out_TD.shape
        block = min(SUM_BLOCK, triton.next_power_of_2(hidden))
        moe_sum_kernel[(tokens, triton.cdiv(hidden, block))](
            results_PD,
            experts_TX,
            out_TD,
            num_experts,
            hidden,
            TOP_K=experts_TX.shape[1],
            BLOCK=block,
        )
