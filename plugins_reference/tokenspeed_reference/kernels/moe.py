"""Kernels of the mixture of experts. Legend: T tokens, E experts, X chosen ones, D, F features."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tokenspeed_reference.kernels.activation import sigmoid
from tokenspeed_reference.kernels.linear import linear
from tokenspeed_sdk import ops


def route(
    logits_TE: torch.Tensor, bias_E: torch.Tensor | None = None, *, routing: ops.moe.Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort all experts: stable, so that ties go to the lower number."""
    logits = logits_TE.double()  # for the reason in activation.sigmoid
    scores = (logits.softmax(-1) if routing.score == "softmax" else logits.sigmoid()).float()
    ranks = scores if bias_E is None else scores + bias_E
    if routing.groups > 1:
        ranks = _within_best_groups(ranks, routing)
    experts = ranks.sort(dim=-1, descending=True, stable=True).indices[:, : routing.top_k]
    weights = scores.gather(-1, experts)
    if routing.normalise:
        weights /= weights.sum(-1, keepdim=True)
    return weights.mul_(routing.scale).type_as(logits_TE), experts


def _within_best_groups(ranks_TE: torch.Tensor, routing: ops.moe.Routing) -> torch.Tensor:
    """Return the ranks, -inf outside each token's best groups."""
    grouped = ranks_TE.view(len(ranks_TE), routing.groups, ranks_TE.shape[1] // routing.groups)
    worth = grouped.topk(routing.group_best, dim=-1).values.sum(-1)
    order = worth.sort(dim=-1, descending=True, stable=True).indices
    others = order[:, routing.top_groups :, None].expand(-1, -1, grouped.shape[-1])
    return grouped.scatter(1, others, -torch.inf).view_as(ranks_TE)


def slots(experts_TX: torch.Tensor, slots_EC: torch.Tensor, copies_E: torch.Tensor) -> torch.Tensor:
    """Compute moe.slots: two look-ups."""
    rows_T1 = torch.arange(len(experts_TX), device=experts_TX.device)[:, None]
    return slots_EC[experts_TX, rows_T1 % copies_E[experts_TX]]


def count(slots_TX: torch.Tensor, counts_S: torch.Tensor, *, first: int) -> torch.Tensor:
    """Compute moe.count: one scatter of ones, without a wait of the host."""
    own_TX = slots_TX - first
    num_slots = len(counts_S) - 1
    is_elsewhere = (own_TX < 0) | (own_TX >= num_slots)
    counted = own_TX.masked_fill(is_elsewhere, num_slots).flatten()
    counts_S.scatter_add_(0, counted, torch.ones_like(counted))
    return own_TX


def experts(
    x_TD: torch.Tensor,
    experts_TX: torch.Tensor,
    weights_TX: torch.Tensor,
    gate_up_EFD: torch.Tensor,
    down_EDF: torch.Tensor,
    gate_up_bias_EF: torch.Tensor | None = None,
    down_bias_ED: torch.Tensor | None = None,
    *,
    clamped: ops.moe.ClampedSwiGLU | None = None,
    multiply: Callable[..., torch.Tensor] = linear,
) -> torch.Tensor:
    """Multiply expert by expert with the tokens that chose it; sums are float32.

    A row's rounding depends on how many tokens share its experts, as `multiply` does.
    """
    out_TD = torch.zeros_like(x_TD, dtype=torch.float32)
    for expert in torch.unique(experts_TX).tolist():
        if not 0 <= expert < len(gate_up_EFD):
            continue  # another rank holds it
        tokens, slots = torch.where(experts_TX == expert)
        gate_up = multiply(x_TD[tokens], gate_up_EFD[expert], _of(gate_up_bias_EF, expert))
        result = multiply(gated(gate_up, clamped), down_EDF[expert], _of(down_bias_ED, expert))
        out_TD.index_add_(0, tokens, result.float() * weights_TX[tokens, slots, None])
    return out_TD.type_as(x_TD)


def _of(bias: torch.Tensor | None, expert: int) -> torch.Tensor | None:
    return None if bias is None else bias[expert]


def gated(gate_up: torch.Tensor, clamped: ops.moe.ClampedSwiGLU | None) -> torch.Tensor:
    """Multiply the second half of the features by the gate in the first."""
    gate, up = gate_up.chunk(2, dim=-1)
    if clamped is None:
        return torch.nn.functional.silu(gate) * up
    gate, up = gate.clamp(max=clamped.limit), up.clamp(-clamped.limit, clamped.limit)
    return gate * sigmoid(clamped.alpha * gate) * (up + 1)


def add_shared(
    routed_TD: torch.Tensor, shared_TD: torch.Tensor, gate_T1: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute moe.add_shared."""
    if gate_T1 is None:
        return routed_TD.add_(shared_TD)
    return torch.addcmul(routed_TD, sigmoid(gate_T1).type_as(routed_TD), shared_TD)
