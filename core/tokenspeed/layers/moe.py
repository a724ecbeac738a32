"""Mixture of experts as a feed-forward block: router, experts, shared expert where there is one.

Legend: T tokens, E experts, D hidden, F hidden features of an expert, X experts chosen a token.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from tokenspeed.contracts.moe import ExpertWeights
from tokenspeed.contracts.placement import ParallelGroup, Partial, Replicate, Shard
from tokenspeed.layers.linear import Linear
from tokenspeed.layers.mlp import GatedMLP
from tokenspeed.layers.placements import LayerPlacement, replicated
from tokenspeed.layers.weights import WeightSlot, plain_tensor
from tokenspeed.ops import moe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.model import ModelContext
    from tokenspeed.contracts.moe import ExpertGroup, RoutingMoEBackend
    from tokenspeed.contracts.weights import LinearWeight

    Routed = Callable[..., torch.Tensor]


EXPERT_GROUP = "experts"
"""Name of the expert group of models that have one."""


class Experts:
    """The routed experts of one layer, stored one by one.

    Gathered stacked and handed to the backend of their group when the last tensor has come. A
    checkpoint that stores them otherwise has its own `weight_slots`, over `take`.

    Args:
        names: of an expert's gate, up and down in the checkpoint.
    """

    placement = LayerPlacement(
        Replicate(), Shard(ParallelGroup.MOE_TP_EP, 0), Partial(ParallelGroup.MOE_TP_EP)
    )

    def __init__(
        self,
        context: ModelContext,
        group: ExpertGroup,
        *,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        self.group = group
        self.names = dict(zip(("gate", "up", "down"), names, strict=True))
        self.backend = context.moe[group.name]
        self._device = context.device
        self._parts: dict[str, list[torch.Tensor | None]] = {}
        self._stacked: dict[str, torch.Tensor] = {}
        self._awaited = {"gate_up_EFD", "down_EDF"}
        if group.bias:
            self._awaited |= {"gate_up_bias_EF", "down_bias_ED"}
        self.prepared: object = None

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield three slots an expert."""
        features, hidden = self.group.features, self.group.hidden_size
        wide, tall = (features, hidden), (hidden, features)
        for expert in range(self.group.num_experts):
            for part, own_name in self.names.items():
                shape = tall if part == "down" else wide
                slot = WeightSlot(shape, partial(self._accept, part, expert))
                yield f"{name}.{expert}.{own_name}.weight", slot

    def take(self, **stacked: torch.Tensor) -> None:
        """Keep tensors under their names in `ExpertWeights`; the last one prepares the layer."""
        self._stacked |= {
            name: tensor.contiguous().to(self._device) for name, tensor in stacked.items()
        }
        self._awaited -= stacked.keys()
        if not self._awaited:
            self.prepared = self.backend.prepare(ExpertWeights(**self._stacked))
            self._stacked.clear()  # they are the backend's now

    def _accept(self, part: str, expert: int, weight: LinearWeight) -> None:
        none: list[torch.Tensor | None] = [None] * self.group.num_experts
        self._parts.setdefault(part, none)[expert] = plain_expert(weight)
        self._stack("down_EDF", "down")
        self._stack("gate_up_EFD", "gate", "up")

    def _stack(self, name: str, *parts: str) -> None:
        import torch

        tensors = [self._parts.get(part, [None]) for part in parts]
        if any(tensor is None for column in tensors for tensor in column):
            return
        rows = [torch.cat(row) for row in zip(*tensors, strict=True)]
        for part in parts:  # the stacked copy replaces them
            del self._parts[part]
        self.take(**{name: torch.stack(rows)})


def plain_expert(weight: LinearWeight) -> torch.Tensor:
    """Return an expert's tensor.

    Raises:
        CheckpointError: it is packed; names the packing.
    """
    return plain_tensor(weight, "an expert's tensor")


class MoE:
    """Chooses experts for each token and sums them, and the shared expert's gated result.

    Args:
        router: name and bias of the router in the checkpoint.
        choice_bias: name of a bias, stored in float32 below the router, that takes part in the
            choice of experts and not in their weights; "": there is none.
        shared_features: F of the shared expert; 0: there is none.
        shared_name: of the shared expert in the checkpoint.
        shared_gated: the shared expert has a gate, `SHARED_NAME_gate`.
    """

    def __init__(
        self,
        context: ModelContext,
        experts: Experts,
        *,
        router: tuple[str, bool] = ("gate", False),
        choice_bias: str = "",
        shared_features: int = 0,
        shared_name: str = "shared_expert",
        shared_gated: bool = True,
    ) -> None:
        group = experts.group
        self.router_name, bias = router
        self.router = Linear(
            context, group.hidden_size, (group.num_experts,), bias=bias, placement=replicated()
        )
        self.experts = experts
        self.choice_bias = choice_bias
        self._device = context.device
        fuses = experts.backend.fuses_routing and not choice_bias
        self._routed = _fused(experts) if fuses else _split(context, experts)
        self.shared: GatedMLP | None = None
        self.shared_name = shared_name
        self.shared_gate: Linear | None = None
        if shared_features:
            self.shared = GatedMLP(
                context, group.hidden_size, shared_features, group=ParallelGroup.MOE_TP_EP
            )
            if shared_gated:
                self.shared_gate = Linear(context, group.hidden_size, (1,), placement=replicated())
            self._add_shared: Callable[..., torch.Tensor] = context.kernels.bind(moe.add_shared)

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots below module `name`."""
        yield from self.router.weight_slots(f"{name}.{self.router_name}")
        if self.choice_bias:
            shape = (self.experts.group.num_experts,)
            slot = WeightSlot(shape, self._accept_choice_bias)
            yield f"{name}.{self.router_name}.{self.choice_bias}", slot
        yield from self.experts.weight_slots(f"{name}.experts")
        if self.shared is not None:
            yield from self.shared.weight_slots(f"{name}.{self.shared_name}")
        if self.shared_gate is not None:
            yield from self.shared_gate.weight_slots(f"{name}.{self.shared_name}_gate")

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return (T, D)."""
        routed_TD = self._routed(x_TD, self.router(x_TD))
        if self.shared is None:
            return routed_TD
        if self.shared_gate is None:
            return self._add_shared(routed_TD, self.shared(x_TD))
        return self._add_shared(routed_TD, self.shared(x_TD), self.shared_gate(x_TD))

    def _accept_choice_bias(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "vectors are never packed"
        self._routed = partial(self._routed, bias_E=weight.plain.to(self._device))


def _split(context: ModelContext, experts: Experts) -> Routed:
    """Choose with the operator, compute with the backend."""
    routing = experts.group.routing
    route: Callable[..., tuple[torch.Tensor, torch.Tensor]] = context.kernels.bind(moe.route)
    forward = experts.backend.forward

    def routed(
        x_TD: torch.Tensor, logits_TE: torch.Tensor, bias_E: torch.Tensor | None = None
    ) -> torch.Tensor:
        weights_TX, experts_TX = route(logits_TE, bias_E, routing=routing)
        return forward(x_TD, experts_TX, weights_TX, experts.prepared)

    return routed


def _fused(experts: Experts) -> Routed:
    """Leave the choice to a backend that fuses it."""
    compute = cast("RoutingMoEBackend", experts.backend).route_and_forward
    return lambda x_TD, logits_TE: compute(x_TD, logits_TE, experts.prepared)
