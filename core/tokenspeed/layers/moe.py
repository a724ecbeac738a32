"""Mixture of experts as a feed-forward block: router, experts, shared expert where there is one.

Legend: T tokens, E experts, D hidden, F hidden features of an expert, X experts chosen a token.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from tokenspeed.contracts.moe import ExpertWeights
from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.errors import ConfigError
from tokenspeed.layers.expert_slots import ExpertSlots
from tokenspeed.layers.linear import Linear
from tokenspeed.layers.mlp import GatedMLP
from tokenspeed.layers.placements import bind_held, held
from tokenspeed.layers.weights import WeightSlot, plain_tensor
from tokenspeed.ops import moe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from tokenspeed.contracts.model import ModelContext
    from tokenspeed.contracts.moe import (
        ExpertGroup,
        MovableMoEBackend,
        Routing,
        RoutingMoEBackend,
    )
    from tokenspeed.contracts.weights import LinearWeight


EXPERT_GROUP = "experts"
"""Name of the expert group of models that have one."""


class Experts:
    """The routed experts of one layer, stored one by one.

    Gathered stacked and handed to the backend of their group when the last tensor has come. A
    checkpoint that stores them otherwise has its own `weight_slots`, over `take`. Of several ranks
    each has some of the experts, and of those some features.

    Args:
        names: of an expert's gate, up and down in the checkpoint.
    """

    spread: ClassVar[Mapping[str, ParallelGroup]] = {
        "E": ParallelGroup.MOE_EP,
        "F": ParallelGroup.MOE_TP,
    }

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
        self.own = range(group.num_experts)
        self.slots: ExpertSlots | None = None
        """None: experts stay where they were loaded."""
        self._compute: Callable[..., torch.Tensor] = self._forward
        if context.shards is not None:
            parts, place = context.shards.place(ParallelGroup.MOE_EP, group.num_experts)
            count = group.num_experts // parts
            self.own = range(place * count, (place + 1) * count)
            if (spare := context.shards.spare_experts) is not None:
                _check_movable(self.backend)
                self.slots = ExpertSlots(
                    group.num_experts,
                    ranks=parts,
                    place=place,
                    spare=spare,
                    kernels=context.kernels,
                    device=self._device,
                )
        if context.recorder is not None:
            self._compute = context.recorder.module(
                self,
                moe.experts.placement,
                weights=self._sizes(),
                spread=self.spread,
                exchanged="E",
            )

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield three slots an expert."""
        features, hidden = self.group.features, self.group.hidden_size
        wide, tall = (features, hidden), (hidden, features)
        for expert in range(self.group.num_experts):
            for part, own_name in self.names.items():
                is_down = part == "down"
                slot = WeightSlot(
                    tall if is_down else wide,
                    partial(self._accept, part, expert - self.own.start),
                    "D F" if is_down else "F D",
                    self.spread,
                    is_held=expert in self.own,
                )
                yield f"{name}.{expert}.{own_name}.weight", slot

    def __call__(
        self, x_TD: torch.Tensor, experts_TX: torch.Tensor, weights_TX: torch.Tensor
    ) -> torch.Tensor:
        """Return (T, D): the chosen experts' results, weighed and summed, of those held here."""
        return self._compute(x_TD, experts_TX, weights_TX)

    @property
    def num_slots(self) -> int:
        """Of one rank, each with an expert; the first ones of all are the first rank's."""
        return len(self.own) if self.slots is None else self.slots.num_slots

    def slots_of(self, experts_TX: torch.Tensor) -> torch.Tensor:
        """Return (T, X), which slot of all ranks computes each choice."""
        return experts_TX if self.slots is None else self.slots.slots_of(experts_TX)

    def at_slots(
        self, x_SD: torch.Tensor, slots_SX: torch.Tensor, weights_SX: torch.Tensor
    ) -> torch.Tensor:
        """Return (S, D), the sum of what this rank's slots make of each row."""
        # Numbers of other ranks' slots contribute nothing.
        if self.slots is not None:
            slots_SX = self.slots.own(slots_SX)
        elif self.own.start:
            slots_SX = slots_SX - self.own.start
        return self.backend.forward(x_SD, slots_SX, weights_SX, self.prepared)

    def take(self, **stacked: torch.Tensor) -> None:
        """Keep tensors under their names in `ExpertWeights`; the last one prepares the layer."""
        self._stacked |= {
            name: self._filled(tensor).contiguous().to(self._device)
            for name, tensor in stacked.items()
        }
        self._awaited -= stacked.keys()
        if not self._awaited:
            self.prepared = self.backend.prepare(ExpertWeights(**self._stacked))
            self._stacked.clear()  # they are the backend's now

    def tensors(self) -> Sequence[torch.Tensor]:
        """Return the tensors whose rows are this rank's slots, to be moved between ranks."""
        backend = cast("MovableMoEBackend", self.backend)
        return backend.expert_tensors(self.prepared)

    def _filled(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a row for each slot: those in excess begin as copies."""
        if self.slots is None or self.num_slots == len(tensor):
            return tensor
        first = self.slots.first
        held = self.slots.placement[first : first + self.num_slots]
        return tensor[[expert - self.own.start for expert in held]]

    def _accept(self, part: str, expert: int, weight: LinearWeight) -> None:
        none: list[torch.Tensor | None] = [None] * len(self.own)
        self._parts.setdefault(part, none)[expert] = plain_expert(weight)
        self._stack("down_EDF", "down")
        self._stack("gate_up_EFD", "gate", "up")

    def _forward(
        self, x_TD: torch.Tensor, experts_TX: torch.Tensor, weights_TX: torch.Tensor
    ) -> torch.Tensor:
        return self.at_slots(x_TD, self.slots_of(experts_TX), weights_TX)

    def _sizes(self) -> Sequence[Sequence[Sequence[int]]]:
        """Return the segments of each tensor in `ExpertWeights`, of all ranks together."""
        group = self.group
        experts, features, hidden = (group.num_experts,), group.features, (group.hidden_size,)
        sizes = ((experts, (features,) * 2, hidden), (experts, hidden, (features,)))
        return (*sizes, (experts, (features,) * 2), (experts, hidden)) if group.bias else sizes

    def _stack(self, name: str, *parts: str) -> None:
        import torch

        tensors = [self._parts.get(part, [None]) for part in parts]
        if any(tensor is None for column in tensors for tensor in column):
            return
        rows = [torch.cat(row) for row in zip(*tensors, strict=True)]
        for part in parts:  # the stacked copy replaces them
            del self._parts[part]
        self.take(**{name: torch.stack(rows)})


def _check_movable(backend: object) -> None:
    if not hasattr(backend, "expert_tensors"):
        raise ConfigError(
            f"{type(backend).__qualname__} computes the experts and cannot have them moved between "
            "ranks, backends with `expert_tensors` can; pin another one, or leave --eplb-steps out"
        )


def plain_expert(weight: LinearWeight) -> torch.Tensor:
    """Return an expert's tensor.

    Raises:
        CheckpointError: it is packed; names the packing.
    """
    return plain_tensor(weight, "an expert's tensor")


class ExpertChoice:
    """Chooses experts by the router's logits.

    Args:
        bias: of that many experts, stored in float32; takes part in the choice, not in the weights.
    """

    spread: ClassVar[Mapping[str, ParallelGroup]] = {}

    def __init__(self, context: ModelContext, group: ExpertGroup, *, bias: bool) -> None:
        self.num_experts = group.num_experts
        self._device = context.device
        dtype = str(context.dtype).removeprefix("torch.")
        self._route: Callable[..., tuple[torch.Tensor, torch.Tensor]] = bind_held(
            context,
            self,
            moe.route,
            weights=(((group.num_experts,),),) if bias else (),
            dtypes=(dtype, "int64"),
        )
        self._bias_E: torch.Tensor | None = held(context)

    def slot(self) -> WeightSlot:
        """Return the slot of the bias."""
        return WeightSlot((self.num_experts,), self._accept)

    def __call__(
        self, logits_TE: torch.Tensor, *, routing: Routing
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights (T, X) and experts (T, X), best first."""
        return self._route(logits_TE, self._bias_E, routing=routing)

    def _accept(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "vectors are never packed"
        self._bias_E = weight.plain.to(self._device)


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
        self.router = Linear(context, group.hidden_size, (group.num_experts,), bias=bias)
        self.experts = experts
        self.choice_bias = choice_bias
        self._routed: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
        if experts.backend.fuses_routing and not choice_bias and context.shards is None:
            self._routed = self._fused
        else:  # of several ranks each has some experts only
            self.choose = ExpertChoice(context, group, bias=bool(choice_bias))
            self._routed = self._split
        self.shared: GatedMLP | None = None
        self.shared_name = shared_name
        self.shared_gate: Linear | None = None
        if shared_features:
            # A dense MLP of every token: its few features lie as those of other dense MLPs, not
            # over all ranks of the experts.
            self.shared = GatedMLP(context, group.hidden_size, shared_features)
            if shared_gated:
                self.shared_gate = Linear(context, group.hidden_size, (1,))
            self._add_shared: Callable[..., torch.Tensor] = context.kernels.bind(moe.add_shared)

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots below module `name`."""
        yield from self.router.weight_slots(f"{name}.{self.router_name}")
        if self.choice_bias:
            yield f"{name}.{self.router_name}.{self.choice_bias}", self.choose.slot()
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

    def _split(self, x_TD: torch.Tensor, logits_TE: torch.Tensor) -> torch.Tensor:
        """Choose with the operator, compute with the backend."""
        weights_TX, experts_TX = self.choose(logits_TE, routing=self.experts.group.routing)
        return self.experts(x_TD, experts_TX, weights_TX)

    def _fused(self, x_TD: torch.Tensor, logits_TE: torch.Tensor) -> torch.Tensor:
        """Leave the choice to a backend that fuses it."""
        backend = cast("RoutingMoEBackend", self.experts.backend)
        return backend.route_and_forward(x_TD, logits_TE, self.experts.prepared)
