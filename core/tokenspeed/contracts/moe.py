"""MoE slot: a backend that holds the experts of a set of layers and computes the chosen ones.

What is computed is written in `ops/moe.py`: operator `moe.experts` is the definition of `forward`,
and `moe.route` followed by it that of `route_and_forward`.
Legend: T tokens, E experts, X experts chosen a token, D hidden, F hidden features of an expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True, slots=True)
class Routing:
    """How experts are chosen.

    Softmax over the chosen logits alone, as some models describe it, is "softmax" normalised.

    Args:
        top_k: X, experts chosen a token.
        score: "softmax" over all experts, or "sigmoid" of each.
        normalise: the weights of a token are divided by their sum.
        groups, top_groups: experts lie in `groups` equal runs, and only the `top_groups` best runs
            are eligible; 1 and 1: all are.
        group_best: a run is worth the sum of its `group_best` best experts.
        scale: multiplies the weights.
    """

    top_k: int
    score: str = "softmax"
    normalise: bool = True
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ClampedSwiGLU:
    """The gate g sigmoid(alpha g) (u + 1), with g at most `limit` and u within +-`limit`."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    """What the experts of a set of layers are like; a model declares it from config.json alone.

    Args:
        name: unique in the model, such as "experts".
        layers: indices of the layers that have such experts; one backend serves them all.
        num_experts: E.
        hidden_size: D.
        features: F.
        routing: how a token's experts are chosen; backends that fuse it read it.
        clamped: the gate; None: silu(g) u.
        bias: gate, up and down have biases.
    """

    name: str
    layers: tuple[int, ...]
    num_experts: int
    hidden_size: int
    features: int
    routing: Routing
    clamped: ClampedSwiGLU | None = None
    bias: bool = False

    def traits(self) -> dict[str, object]:
        """Return what a request for a backend carries, beside device and dtype.

        `routing` counts for backends that fuse it; others declare "*".
        """
        return {
            "num_experts": self.num_experts,
            "top_k": self.routing.top_k,
            "hidden_size": self.hidden_size,
            "expert_features": self.features,
            "expert_gate": "silu" if self.clamped is None else "clamped_swiglu",
            "expert_bias": self.bias,
            "routing": self.routing.score + ("_grouped" if self.routing.groups > 1 else ""),
        }


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """One layer's experts as they were stored, stacked.

    Args:
        gate_up_EFD: (E, 2 F, D), device, contiguous; gate rows in [0, F), up rows in [F, 2 F).
        down_EDF: (E, D, F), same dtype and device, contiguous.
        gate_up_bias_EF: (E, 2 F), or None where the group has no bias.
        down_bias_ED: (E, D), or None.
    """

    gate_up_EFD: torch.Tensor
    down_EDF: torch.Tensor
    gate_up_bias_EF: torch.Tensor | None = None
    down_bias_ED: torch.Tensor | None = None


class MoEBackend(Protocol):
    """Required: prepare, forward. Optional: route_and_forward, declared by `fuses_routing`; and
    `expert_tensors`, of backends whose experts can be moved (`MovableMoEBackend`). An offer whose
    `requires` has graph_safe (True, False) is captured into device graphs.

    One instance serves all layers of an expert group.
    """

    fuses_routing: bool
    """True: `route_and_forward` is there, and layers call it in place of `forward`, unless a bias
    takes part in the choice of experts."""

    def prepare(self, weights: ExpertWeights) -> object:
        """Lay one layer's experts out as `forward` wants them; called once a layer, at load.

        The backend owns `weights` from now on and may keep, convert or drop the tensors.

        Returns:
            What is passed to `forward` unchanged.
        """
        ...

    def forward(
        self,
        x_TD: torch.Tensor,
        experts_TX: torch.Tensor,
        weights_TX: torch.Tensor,
        prepared: object,
    ) -> torch.Tensor:
        """Sum each token's experts, weighed: `moe.experts`.

        Args:
            x_TD: (T, D) device, rows contiguous; not written. T may be 0.
            experts_TX: (T, X) int64 device; the experts of a token differ. A number outside [0, E)
                is an expert that another rank holds, and adds nothing.
            weights_TX: (T, X) float, device.
            prepared: what `prepare` returned for this layer.
        Returns:
            (T, D), dtype and device of x.
        """
        ...


class MovableMoEBackend(MoEBackend, Protocol):
    """A backend whose experts can be replaced between steps."""

    def expert_tensors(self, prepared: object) -> Sequence[torch.Tensor]:
        """Return the tensors in which a layer's experts lie, alike on every rank.

        Row i of each belongs to expert i and to no other. Between steps rows may be read, and
        overwritten with the rows of an expert of this layer on any rank; the next `forward`
        computes with them.
        """
        ...


class RoutingMoEBackend(MoEBackend, Protocol):
    """A backend whose `fuses_routing` is True."""

    def route_and_forward(
        self,
        x_TD: torch.Tensor,
        logits_TE: torch.Tensor,
        prepared: object,
    ) -> torch.Tensor:
        """Choose each token's experts as the group's `routing` says, and sum them.

        Args:
            logits_TE: (T, E) the router's result, dtype of x.
            x_TD, prepared: as `forward` takes them.
        Returns:
            (T, D), dtype and device of x.
        """
        ...
