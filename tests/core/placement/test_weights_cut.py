"""Ranks that load one checkpoint hold together what one rank holds: every layer, many meshes.

What a layer holds is what it gives its kernel or backend; where it lies is what the placement rule
and the annotation of its node say, so the loader and the compiler agree.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.traced_models import even, model_class, random_weights

from tokenspeed.contracts.attention import KVView, StateView
from tokenspeed.contracts.model import ModelContext, StateRows, expert_groups_of
from tokenspeed.contracts.moe import ExpertWeights
from tokenspeed.placement.annotations import annotated
from tokenspeed.placement.graph import Kind, Node, Ref
from tokenspeed.placement.mesh import Degrees, Mesh, build_mesh
from tokenspeed.placement.paths import module_at
from tokenspeed.placement.rule import place
from tokenspeed.placement.shards import RankShards
from tokenspeed.placement.trace import trace
from tokenspeed_sdk.conformance.cut_tensors import held

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.contracts.kernel import Operator
    from tokenspeed.placement.graph import Graph

MODELS = (
    *("llama_biases_linear", "llama_tied_llama3_sharded", "qwen2", "qwen3", "qwen3_moe"),
    *("mixtral", "deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "gpt_oss"),
    *("qwen3_next", "qwen3_5", "qwen3_5_moe"),
)
MESHES = {
    "tp2": Degrees(tp=2),
    "tp4": Degrees(tp=4),
    "tp2 cp2": Degrees(tp=2, cp=2),
    "tp4 ep2": Degrees(tp=4, ep=2),
    "dp2 ep4": Degrees(dp=2, tp=2, ep=4),
    "dp4 dense2": Degrees(dp=4, dense_tp=2),
    "tp2 pp2": Degrees(tp=2, pp=2),
}


class Seen(Exception):
    """Carries what a layer gave its kernel."""


class Noting:
    """A binder, and backends, that raise what they are given."""

    fuses_routing = False

    def bind(self, operator: Operator, **traits: object) -> Callable[..., Any]:
        """Return a kernel that raises its tensors."""
        return raise_tensors

    def prepare(self, weights: ExpertWeights) -> object:
        """Keep an expert's tensors in the order of the operator."""
        tensors = (
            *(weights.gate_up_EFD, weights.down_EDF),
            *(weights.gate_up_bias_EF, weights.down_bias_ED),
        )
        return [tensor for tensor in tensors if tensor is not None]

    def forward(self, x: Any, experts: Any, weights: Any, prepared: Any) -> Any:
        """Raise them."""
        raise Seen(*prepared)

    def write(self, *_: Any) -> None:
        """Write nothing."""

    def attend(self, *_: Any, sinks_N: Any = None, **__: Any) -> Any:
        """Raise the sinks."""
        raise Seen(*([] if sinks_N is None else [sinks_N]))


def raise_tensors(*arguments: Any, **_: Any) -> Any:
    raise Seen(*(item for item in arguments if isinstance(item, torch.Tensor)))


def build(config: Any, shards: RankShards | None) -> Any:
    cls, noting = model_class(config), Noting()
    groups = cls.cache_groups(config)
    context = ModelContext(
        kernels=noting,
        attention={group.name: noting for group in groups},  # type: ignore[misc]
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_context_tokens=config["max_position_embeddings"],
        moe={group.name: noting for group in expert_groups_of(cls, config)},  # type: ignore[misc]
        shards=shards,
    )
    model = cls(config, context)
    model.load_weights(random_weights(cls(config, replace(context, shards=None))))
    return model


def held_by(model: Any, node: Node, step: Any) -> list[torch.Tensor]:
    """Return the tensors that a module holds, in the order of its rule."""
    arguments = [Given() if isinstance(given, Ref) else step for given in node.inputs]
    with pytest.raises(Seen) as seen:
        module_at(model, node.target)(*arguments, **node.options)
    return list(seen.value.args)


class Given:
    """An argument: no tensor, so that tensors are the module's; ids less the first row."""

    def __sub__(self, first: int) -> Given:
        return self


def make_step(config: Any) -> Any:
    layers = range(config["num_hidden_layers"])
    states = [StateView({"conv": None, "recurrent": None})] * len(layers)  # type: ignore[dict-item]
    groups = model_class(config).cache_groups(config)
    kv: list[Any] = list(states)
    for group in groups:
        for layer in group.layers:
            if group.kind != "state":
                kv[layer] = KVView(torch.empty(1), torch.empty(1))
    rows = StateRows(torch.empty(0), torch.empty(0))
    metadata = {group.name: None for group in groups}
    return SimpleNamespace(
        kv=kv,
        state_rows=dict.fromkeys(layers, rows),
        query_start=None,
        attention_metadata=metadata,
        query_metadata={},
    )


def modules_of(config: Any) -> list[tuple[Graph, Node]]:
    graphs = trace(model_class(config), config, dtype="float32")
    return [
        (graph, node)
        for graph in (graphs.forward, graphs.logits)
        for node in graph.nodes
        if node.kind is Kind.MODULE and not node.target.endswith(".rule")
    ]


def stage_layers(mesh: Mesh, rank: int, num_layers: int) -> range:
    stages = mesh.degrees.pp
    bounds = [num_layers * stage // stages for stage in range(stages + 1)]
    return range(*bounds[mesh.stage(rank) : mesh.stage(rank) + 2])


def in_stage(node: Node, shards: RankShards) -> bool:
    if node.layer >= 0:
        return shards.holds_layer(node.layer)
    if node.target == "embedding":
        return shards.is_first_stage
    return shards.is_last_stage or node.target == "rotary.angles"


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_ranks_hold_together_what_one_rank_holds(name: str, mesh_name: str) -> None:
    config, mesh = even(name), build_mesh(MESHES[mesh_name])
    whole, step = build(config, None), make_step(config)
    modules = modules_of(config)
    tensors = {node.target: held_by(whole, node, step) for _, node in modules}
    num_cut = 0
    for rank in range(mesh.world):
        layers = stage_layers(mesh, rank, config["num_hidden_layers"])
        shards = RankShards(mesh, rank, layers)
        model = build(config, shards)
        for graph, node in modules:
            if not in_stage(node, shards):
                continue
            placed = place(node, graph.values, annotated(node, mesh), mesh)
            layouts = placed.inputs[len(placed.inputs) - len(node.weights) :]
            own = held_by(model, node, step)
            assert len(own) == len(layouts) == len(tensors[node.target])
            for tensor, layout, total in zip(own, layouts, tensors[node.target], strict=True):
                wanted = held(total, layout, mesh, rank % mesh.degrees.stage_ranks)
                if mesh.place(rank, sorted(layout.partial)):
                    wanted = torch.zeros_like(wanted)
                assert torch.equal(tensor, wanted), f"{node.target} on rank {rank}: {layout}"
                num_cut += wanted.numel() < total.numel()
    assert num_cut > mesh.world
