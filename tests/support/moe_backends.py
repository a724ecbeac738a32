"""MoE backends for tests: the definition as one, and those that a registry would bind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tokenspeed.contracts.model import expert_groups_of
from tokenspeed.contracts.moe import ExpertWeights
from tokenspeed.kernels import select
from tokenspeed.ops.moe import experts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed.contracts.moe import ClampedSwiGLU, ExpertGroup, MoEBackend
    from tokenspeed.plugins import Registry


class DefinitionExperts:
    """The definition of `moe.experts`, as slow as it is clear."""

    fuses_routing = False

    def __init__(self, clamped: ClampedSwiGLU | None = None) -> None:
        self._clamped = clamped

    def prepare(self, weights: ExpertWeights) -> object:
        """Keep the weights."""
        return weights

    def forward(
        self,
        x_TD: torch.Tensor,
        experts_TX: torch.Tensor,
        weights_TX: torch.Tensor,
        prepared: Any,
    ) -> torch.Tensor:
        """Evaluate the definition."""
        held: ExpertWeights = prepared
        result: torch.Tensor = experts.signature(
            x_TD,
            experts_TX,
            weights_TX,
            held.gate_up_EFD,
            held.down_EDF,
            held.gate_up_bias_EF,
            held.down_bias_ED,
            clamped=self._clamped,
        )
        return result


def bound_moe(
    registry: Registry,
    model_class: Any,
    config: Mapping[str, Any],
    *,
    objective: str = "latency",
) -> dict[str, MoEBackend]:
    """Choose backends for a float32 model on the CPU, as an engine does."""
    groups = expert_groups_of(model_class, config)
    return bound_moe_groups(registry, groups, objective=objective)


def bound_moe_groups(
    registry: Registry, groups: Sequence[ExpertGroup], *, objective: str = "latency"
) -> dict[str, MoEBackend]:
    """Choose a backend for each group."""
    return {group.name: _choose(registry, group, objective) for group in groups}


def _choose(registry: Registry, group: ExpertGroup, objective: str) -> MoEBackend:
    traits = {"device": "cpu", "dtype": "float32", **group.traits()}
    chosen = select("moe", registry.offers("moe"), traits, objective=objective)
    backend: MoEBackend = chosen.winner.offer.load(
        group=group, dtype=torch.float32, device=torch.device("cpu")
    )
    return backend
