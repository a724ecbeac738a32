"""A MoE backend against the sum over experts, written out in float64.

Legend: T tokens, E experts, X experts chosen a token, D hidden, F hidden features of an expert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed_sdk import ExpertWeights
from tokenspeed_sdk.conformance.tolerance import assert_close

if TYPE_CHECKING:
    from tokenspeed_sdk import ExpertGroup, MoEBackend

TOKENS = (0, 1, 3, 33)


def check_moe(
    backend: MoEBackend, group: ExpertGroup, dtype: torch.dtype, device: torch.device, *, seed: int
) -> None:
    """Compare `forward` for several numbers of tokens; tokens may all choose the same experts.

    Raises:
        AssertionError: says where.
    """
    random = torch.Generator().manual_seed(seed)
    weights = _weights(group, dtype, random)
    prepared = backend.prepare(_on(weights, device))
    for num_tokens in TOKENS:
        x_TD = torch.randn(num_tokens, group.hidden_size, generator=random).to(dtype)
        scores = torch.rand(num_tokens, group.num_experts, generator=random)
        top = scores.topk(group.routing.top_k, dim=-1)
        weights_TX = top.values / top.values.sum(-1, keepdim=True)
        expected = exact_experts(x_TD, top.indices, weights_TX, weights, group)
        before = x_TD.clone().to(device)
        given = before.clone()
        result = backend.forward(
            given, top.indices.to(device), weights_TX.to(dtype).to(device), prepared
        )
        assert torch.equal(given, before), "forward writes into x_TD"
        assert result.dtype == dtype, f"the result is {result.dtype}, x is {dtype}"
        assert_close(result, expected, f"experts of {num_tokens} tokens, {group}")


def check_rows_are_independent(
    backend: MoEBackend, group: ExpertGroup, dtype: torch.dtype, device: torch.device
) -> None:
    """A token's result is bitwise the same alone and in a batch."""
    random = torch.Generator().manual_seed(7)
    prepared = backend.prepare(_on(_weights(group, dtype, random), device))
    x_TD = torch.randn(9, group.hidden_size, generator=random).to(dtype).to(device)
    top = torch.rand(9, group.num_experts, generator=random).topk(group.routing.top_k, dim=-1)
    experts, weights = top.indices.to(device), top.values.to(dtype).to(device)
    whole = backend.forward(x_TD, experts, weights, prepared)
    for t in range(9):
        alone = backend.forward(x_TD[t : t + 1], experts[t : t + 1], weights[t : t + 1], prepared)
        assert torch.equal(alone[0], whole[t]), f"token {t} differs in a batch of one"


def exact_experts(
    x_TD: torch.Tensor,
    experts_TX: torch.Tensor,
    weights_TX: torch.Tensor,
    weights: ExpertWeights,
    group: ExpertGroup,
) -> torch.Tensor:
    """Return (T, D) float64: token by token, expert by expert."""
    gate_up, down, gate_up_bias, down_bias = (
        None if part is None else part.double() for part in _parts(weights)
    )
    assert gate_up is not None
    assert down is not None
    out_TD = torch.zeros(x_TD.shape, dtype=torch.float64)
    for t in range(len(x_TD)):
        for expert, weight in zip(experts_TX[t].tolist(), weights_TX[t].double(), strict=True):
            hidden = gate_up[expert] @ x_TD[t].double()
            if gate_up_bias is not None:
                hidden = hidden + gate_up_bias[expert]
            y_D = down[expert] @ _gated(hidden, group)
            if down_bias is not None:
                y_D = y_D + down_bias[expert]
            out_TD[t] += weight * y_D
    return out_TD


def _gated(hidden: torch.Tensor, group: ExpertGroup) -> torch.Tensor:
    gate, up = hidden.chunk(2)
    if group.clamped is None:
        return gate * gate.sigmoid() * up
    gate = gate.clamp(max=group.clamped.limit)
    up = up.clamp(-group.clamped.limit, group.clamped.limit)
    result: torch.Tensor = gate * (group.clamped.alpha * gate).sigmoid() * (up + 1)
    return result


def _weights(group: ExpertGroup, dtype: torch.dtype, random: torch.Generator) -> ExpertWeights:
    e, d, f = group.num_experts, group.hidden_size, group.features

    def noise(*shape: int) -> torch.Tensor:
        unit: torch.Tensor = torch.randn(shape, generator=random) * shape[-1] ** -0.5
        return unit.to(dtype)

    biases = (noise(e, 2 * f), noise(e, d)) if group.bias else (None, None)
    return ExpertWeights(noise(e, 2 * f, d), noise(e, d, f), *biases)


def _parts(weights: ExpertWeights) -> tuple[torch.Tensor | None, ...]:
    return (
        weights.gate_up_EFD,
        weights.down_EDF,
        weights.gate_up_bias_EF,
        weights.down_bias_ED,
    )


def _on(weights: ExpertWeights, device: torch.device) -> ExpertWeights:
    """Copy to a device; the backend owns the copy."""

    def copied(part: torch.Tensor) -> torch.Tensor:
        return part.clone().to(device)

    gate_up_bias, down_bias = (
        None if part is None else copied(part)
        for part in (weights.gate_up_bias_EF, weights.down_bias_ED)
    )
    return ExpertWeights(
        copied(weights.gate_up_EFD), copied(weights.down_EDF), gate_up_bias, down_bias
    )
