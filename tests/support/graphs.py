"""Graphs made by hand: what a trace of small decoders gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.ops import activation, embedding, linear, moe, norm, rotary
from tokenspeed.placement.graph import Graph, Kind, Node, Ref, StepArgument, Value
from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.rule import parse, result_parts
from tokenspeed.placement.views import view_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

Parts = tuple[tuple[int, ...], ...]
T = (TOKENS,)

LINEAR = linear.linear.placement
NORM = norm.rms_norm.placement
ADD_NORM = norm.add_rms_norm.placement
ADD = "~... D, ~... D -> ... D"
SILU_MUL = activation.silu_mul.placement
ROTARY = rotary.apply_rotary.placement
ANGLES = rotary.rotary_angles.placement
EMBEDDING = embedding.embedding.placement
ATTENTION = "Q N H!, T K H!, T K V! -> Q N V!; K<N, T<Q"
ROUTE = "T E! -> T X!, T X!; X=top_k"
EXPERTS = moe.experts.placement


class GraphBuilder:
    """Adds one node after another; sizes of results follow from rules and views."""

    def __init__(self, dtype: str = "bfloat16") -> None:
        self.dtype = dtype
        self.layer = -1
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.inputs: list[int] = []

    def take(self, *parts: tuple[int, ...], dtype: str = "", name: str = "x") -> Ref:
        """Add a value that the caller gives."""
        ref = self._value(parts, dtype or self.dtype, name)
        self.inputs.append(ref.number)
        return ref

    def call(
        self,
        target: str,
        rule: str,
        *inputs: Any,
        weights: tuple[Parts, ...] = (),
        kind: Kind = Kind.MODULE,
        spread: Mapping[str, ParallelGroup] | None = None,
        units: Mapping[str, tuple[int, ...]] | None = None,
        dtype: str = "",
        exchanged: str = "",
        **options: Any,
    ) -> Any:
        """Add a module or operator; returns its result or results."""
        known = parse(rule)
        parts = [self.values[item.number].parts if isinstance(item, Ref) else None
                 for item in inputs if not isinstance(item, StepArgument)]  # fmt: skip
        results = result_parts(known, (*parts, *weights), options)
        made = tuple(self._value(item, dtype or self.dtype, target) for item in results)
        self._add(
            Node(
                kind,
                target if self.layer < 0 else f"layers.{self.layer}.{target}",
                inputs,
                tuple(ref.number for ref in made),
                options,
                known,
                weights,
                spread or {},
                units or {},
                layer=self.layer,
                where=f"model.py:{len(self.nodes)}",
                exchanged=exchanged,
            )
        )
        return made if len(made) > 1 else made[0]

    def operator(self, target: str, rule: str, *inputs: Any, **options: Any) -> Any:
        """Add an operator on activations."""
        return self.call(target, rule, *inputs, kind=Kind.OPERATOR, **options)

    def view(self, target: str, tensors: Ref | tuple[Ref, ...], *arguments: Any) -> Any:
        """Add a view; returns its result or results."""
        refs = tensors if isinstance(tensors, tuple) else (tensors,)
        known = view_parts(target, [self.values[ref.number].parts for ref in refs], arguments)
        made = tuple(self._value(parts, self.dtype, target) for parts in known)
        numbers = tuple(ref.number for ref in made)
        self._add(
            Node(
                Kind.VIEW,
                target,
                (*refs, *arguments),
                numbers,
                layer=self.layer,
                where=f"model.py:{len(self.nodes)}",
            )
        )
        return made if len(made) > 1 else made[0]

    def linear(
        self,
        target: str,
        x: Ref,
        parts: tuple[int, ...],
        spread: Mapping[str, ParallelGroup] | None = None,
        units: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Any:
        """Add a product with a weight."""
        (inside,) = self.values[x.number].parts[-1:]
        return self.call(target, LINEAR, x, weights=((parts, inside),), spread=spread, units=units)

    def build(self, *outputs: Ref) -> Graph:
        """Return the graph."""
        numbers = tuple(ref.number for ref in outputs)
        return Graph(tuple(self.values), tuple(self.nodes), tuple(self.inputs), numbers)

    def _value(self, parts: Parts, dtype: str, name: str) -> Ref:
        number = len(self.values)
        self.values.append(Value(number, tuple(parts), dtype, name))
        return Ref(number)

    def _add(self, node: Node) -> None:
        self.nodes.append(node)


def decoder(
    num_layers: int = 2,
    *,
    hidden: int = 64,
    heads: int = 8,
    kv_heads: int = 4,
    head_dim: int = 16,
    features: int = 128,
    experts: int = 0,
    shared: int = 0,
    vocab: int = 256,
    has_norm: bool = True,
) -> Graph:
    """Return the graph of a decoder: dense, or with experts and perhaps a shared one."""
    build = GraphBuilder()
    ids = build.take(T, dtype="int64", name="token_ids")
    positions = build.take(T, dtype="int64", name="positions")
    angles = build.call("rotary", ANGLES, positions, weights=(((1024,), (head_dim,)),))
    spread = {"V": ParallelGroup.VOCAB_TP}
    x = build.call("embedding", EMBEDDING, ids, weights=(((vocab,), (hidden,)),), spread=spread)
    residual = None
    for layer in range(num_layers):
        build.layer = layer
        x, residual = _norm(build, "attention_norm", x, residual, hidden)
        x = _attention(build, x, angles, hidden, (heads, kv_heads, head_dim))
        x, residual = _norm(build, "mlp_norm", x, residual, hidden)
        if experts:
            x = _moe(build, x, hidden, features, experts, shared)
        else:
            x = mlp(build, "mlp", x, hidden, features, ParallelGroup.DENSE_TP)
    build.layer = -1
    if has_norm:
        x, _ = _norm(build, "norm", x, residual, hidden)
    return build.build(x)


def _norm(build: GraphBuilder, name: str, x: Ref, residual: Ref | None, hidden: int) -> Any:
    if residual is None:
        return build.call(name, NORM, x, weights=(((hidden,),),)), x
    return build.call(name, ADD_NORM, x, residual, weights=(((hidden,),),))


def _attention(
    build: GraphBuilder, x: Ref, angles: Any, hidden: int, sizes: tuple[int, int, int]
) -> Ref:
    heads, kv_heads, head_dim = sizes
    counts = (heads, kv_heads, kv_heads)
    qkv = build.linear(
        "qkv",
        x,
        tuple(count * head_dim for count in counts),
        {"O": ParallelGroup.ATTN_TP},
        {"O": counts},
    )
    qkv = build.view("view", qkv, -1, sum(counts), head_dim)
    qk, v = build.view("split_with_sizes", qkv, (heads + kv_heads, kv_heads), 1)
    turned = build.operator("rotary.apply", ROTARY, qk, *angles)
    q, k = build.view("split_with_sizes", turned, (heads, kv_heads), 1)
    groups = ParallelGroup
    spread = {"T": groups.ATTN_DP, "Q": groups.ATTN_CP, "K": groups.ATTN_TP, "N": groups.ATTN_TP}
    units = {"K": (kv_heads,), "N": (heads,)}
    y = build.call("attend", ATTENTION, q, k, v, StepArgument(), spread=spread, units=units)
    y = build.view("flatten", y, -2)
    return build.linear("output", y, (hidden,), {"I": groups.ATTN_TP}, {"I": (heads,)})


def mlp(
    build: GraphBuilder, name: str, x: Ref, hidden: int, features: int, group: ParallelGroup
) -> Ref:
    """Add a gated MLP."""
    wide = build.linear(f"{name}.gate_up", x, (features, features), {"O": group})
    return build.linear(
        f"{name}.down", build.operator("silu_mul", SILU_MUL, wide), (hidden,), {"I": group}
    )


def _moe(build: GraphBuilder, x: Ref, hidden: int, features: int, experts: int, shared: int) -> Ref:
    logits = build.linear("mlp.router", x, (experts,))
    weights, chosen = build.operator("moe.route", ROUTE, logits, top_k=2)
    routed = build.call(
        "mlp.experts",
        EXPERTS,
        x,
        chosen,
        weights,
        weights=(
            ((experts,), (features, features), (hidden,)),
            ((experts,), (hidden,), (features,)),
        ),
        spread={"E": ParallelGroup.MOE_EP, "F": ParallelGroup.MOE_TP},
    )
    if not shared:
        return routed
    other = mlp(build, "mlp.shared", x, hidden, shared, ParallelGroup.DENSE_TP)
    return build.operator("moe.add_shared", ADD, routed, other)
