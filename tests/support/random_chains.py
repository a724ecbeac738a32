"""Models of random modules without attention: what a compiler has to place, in any order.

A chain is drawn from its config's seed, so that every rank and the trace build the same one.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tests.support.hand_driven import plugins
from tests.support.moe_backends import bound_moe_groups

from tokenspeed.contracts.model import ModelContext
from tokenspeed.contracts.moe import ExpertGroup, Routing
from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.executor.placed_model import PlacedModel
from tokenspeed.kernels.registry import KernelRegistry
from tokenspeed.layers import Experts, GatedMLP, Linear, MoE, RMSNorm, TokenEmbedding, fill_slots
from tokenspeed.placement.local import local_expert_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tokenspeed.contracts.weights import LinearWeight
    from tokenspeed.executor.connections import GroupConnections
    from tokenspeed.layers import WeightSlot
    from tokenspeed.placement.compiled import CompiledModel

HIDDEN, VOCABULARY, EXPERTS = 24, 48, 8
GROUPS = (
    *(ParallelGroup.ATTN_TP, ParallelGroup.DENSE_TP, ParallelGroup.VOCAB_TP),
    *(ParallelGroup.MOE_TP, ParallelGroup.MOE_EP),
)


class Pair:
    """Two products, each cut over a random group along one of its sides, or whole."""

    def __init__(self, context: ModelContext, draw: random.Random) -> None:
        bias = draw.random() < 0.5
        self.parts = draw.choice(((48,), (24, 48), (24, 24, 48)))
        self.up = Linear(context, HIDDEN, self.parts, bias=bias, spread=_spread(draw))
        self.keeps = draw.randrange(len(self.parts))
        width = self.parts[self.keeps]
        self.down = Linear(context, width, (HIDDEN,), bias=bias, spread=_spread(draw))

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots of all parts."""
        yield from self.up.weight_slots(*(f"{name}.up{part}" for part in range(len(self.parts))))
        yield from self.down.weight_slots(f"{name}.down")

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return (T, D) from one of the parts."""
        return self.down(self.up(x_TD).split_with_sizes(self.parts, -1)[self.keeps])


class RandomChain:
    """Satisfies what a trace and a placed model need of a CausalLM."""

    architectures: ClassVar[tuple[str, ...]] = ("RandomChain",)

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        draw = random.Random(config["seed"])
        self.context = context
        self.embedding = TokenEmbedding(context, VOCABULARY, HIDDEN)
        self.layers: list[Any] = []
        self.norms: list[RMSNorm] = []
        self.kinds: list[str] = []
        for layer in range(config["num_layers"]):
            self.layers.append(self._block(layer, draw))
            self.norms.append(RMSNorm(context, HIDDEN, eps=1e-5))
            self.kinds.append(draw.choice(("sum", "norm of sum", "norm", "both", "replaced")))
        self.head = Linear(context, HIDDEN, (VOCABULARY,), spread={"O": ParallelGroup.VOCAB_TP})

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[Any, ...]:
        """Declare none."""
        return ()

    @classmethod
    def expert_groups(cls, config: Mapping[str, Any]) -> tuple[ExpertGroup, ...]:
        """Declare experts in every layer: who has none does not ask for them."""
        layers = tuple(range(config["num_layers"]))
        return (ExpertGroup("experts", layers, EXPERTS, HIDDEN, 24, Routing(2)),)

    def weight_map(self) -> dict[str, WeightSlot]:
        """Return every slot by name."""
        slots = dict(self.embedding.weight_slots("embedding"))
        for number, (block, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            slots |= block.weight_slots(f"layers.{number}")
            slots |= norm.weight_slots(f"norm.{number}")
        return slots | dict(self.head.weight_slots("head"))

    def load_weights(self, weights: Iterable[tuple[str, LinearWeight]]) -> None:
        """Take this rank's part of every tensor."""
        fill_slots(self.weight_map(), weights, shards=self.context.shards)

    def forward(self, token_ids_T: torch.Tensor, step: Any) -> torch.Tensor:
        """Return (T, D)."""
        x_TD = self.embedding(token_ids_T)
        for block, norm, kind in zip(self.layers, self.norms, self.kinds, strict=True):
            y_TD = block(norm(x_TD) if kind == "norm" else x_TD)
            if kind == "sum":
                x_TD = x_TD + y_TD
            elif kind == "norm of sum":
                x_TD = norm.add(y_TD, x_TD)[0]
            elif kind == "both":
                normed_TD, summed_TD = norm.add(y_TD, x_TD)
                x_TD = normed_TD + summed_TD
            else:
                x_TD = y_TD
        return x_TD

    def compute_logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Return (R, V)."""
        return self.head(hidden_RD).float()

    def _block(self, layer: int, draw: random.Random) -> Any:
        kind = draw.choice(("pair", "pair", "mlp", "experts"))
        if kind == "pair":
            return Pair(self.context, draw)
        if kind == "mlp":
            return GatedMLP(self.context, HIDDEN, 48, group=draw.choice(GROUPS))
        (group,) = self.expert_groups({"num_layers": layer + 1})
        shared = draw.choice((0, 24))
        return MoE(self.context, Experts(self.context, group), shared_features=shared)


def _spread(draw: random.Random) -> dict[str, ParallelGroup]:
    side = draw.choice(("O", "I", ""))
    return {side: draw.choice(GROUPS)} if side else {}


def build_chain(
    config: Mapping[str, Any],
    weights: Any,
    *,
    compiled: CompiledModel | None = None,
    rank: int = 0,
    connections: GroupConnections | None = None,
) -> Any:
    """Build the whole chain; with a compiled one, a rank's part of it."""
    shards = None if compiled is None else compiled.shards(rank)
    groups = RandomChain.expert_groups(config)
    if shards is not None:
        groups = tuple(local_expert_group(group, shards) for group in groups)
    binder = KernelRegistry(plugins()).binder({"device": "cpu", "dtype": "float32"})
    moe = bound_moe_groups(plugins(), groups)
    cpu = torch.device("cpu")
    model = RandomChain(
        config, ModelContext(binder, {}, torch.float32, cpu, 64, moe, shards=shards)
    )
    model.load_weights(weights(model))
    if compiled is None or connections is None:
        return model
    return PlacedModel(
        model,  # type: ignore[arg-type]
        compiled,
        rank=rank,
        kernels=binder,
        connections=connections,
    )
