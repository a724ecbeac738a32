"""Fusions and branches: what may be done in one call, and what beside one another."""

from __future__ import annotations

from dataclasses import replace

from tests.support.graphs import decoder

from tokenspeed.ops import norm
from tokenspeed.placement.beside import branch_labels
from tokenspeed.placement.compiler import compile_graph
from tokenspeed.placement.cost import CostModel
from tokenspeed.placement.fuse import FEATURE, fuse
from tokenspeed.placement.graph import Graph
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.program import Call, Collective, Move, Program, Reduced


def with_operators(graph: Graph, operator: object = norm.add_rms_norm) -> Graph:
    """Return the graph with the operator of its norms named, as a trace does."""
    nodes = tuple(
        replace(node, operator=operator) if len(node.outputs) == 2 and node.weights else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def able(axes: tuple[str, ...]) -> set[str]:
    """The features of communicators that can."""
    return {FEATURE}


def program_of(graph: Graph, **degrees: int) -> Program:
    (program,) = compile_graph(graph, build_mesh(Degrees(**degrees)), CostModel(), 64)
    return program


def test_sum_residual_and_norm_become_one_call() -> None:
    program = program_of(with_operators(decoder(2)), tp=2)
    fused = fuse(program, able)
    reduced = [item for item in fused.instructions if isinstance(item, Reduced)]
    assert [item.call.node.target for item in reduced] == [
        "layers.0.mlp_norm",
        "layers.1.attention_norm",
        "layers.1.mlp_norm",
        "norm",
    ]
    for item in reduced:
        assert item.move.collective is Collective.ALL_REDUCE
        assert item.call.inputs[0] == item.move.target
    assert fused.digest != program.digest
    assert (fused.inputs, fused.outputs) == (program.inputs, program.outputs)


def test_unfused_again_it_is_the_same_program() -> None:
    program = program_of(with_operators(decoder(2, experts=8, shared=64)), tp=4, ep=2)
    unfolded = []
    for item in fuse(program, able).instructions:
        unfolded += [item.move, item.call] if isinstance(item, Reduced) else [item]
    assert sorted(map(repr, unfolded)) == sorted(map(repr, program.instructions))
    written = {*program.inputs}
    for item in unfolded:
        reads = (item.source,) if isinstance(item, Move) else item.inputs
        assert {*reads} <= written
        written |= {item.target} if isinstance(item, Move) else {*item.outputs}


def test_without_the_feature_or_another_norm_nothing_is_fused() -> None:
    program = program_of(with_operators(decoder(2)), tp=2)
    assert fuse(program, lambda axes: {"graph_safe"}) is program
    centred = program_of(with_operators(decoder(2), norm.add_centred_rms_norm), tp=2)
    assert fuse(centred, able).instructions == centred.instructions


def test_groups_without_the_feature_are_left_as_they_are() -> None:
    graph = with_operators(decoder(2, experts=8))
    program = program_of(graph, tp=2, ep=4)
    sums = {i.axes for i in program.instructions if isinstance(i, Move) and i.axes}
    assert len(sums) > 1
    (*_, last) = sorted(sums)
    fused = fuse(program, lambda axes: {FEATURE} if axes == last else set())
    over = [i.move.axes for i in fused.instructions if isinstance(i, Reduced)]
    assert {*over} == {last}


def test_a_sum_that_others_read_too_is_not_fused() -> None:
    graph = with_operators(decoder(1))
    down = next(node for node in graph.nodes if node.target.endswith("mlp.down"))
    both = replace(graph, outputs=(*graph.outputs, *down.outputs))
    fused = fuse(program_of(both, tp=2), able)
    targets = [i.call.node.target for i in fused.instructions if isinstance(i, Reduced)]
    assert targets == ["layers.0.mlp_norm"]


def test_the_shared_expert_is_beside_the_routed_ones() -> None:
    graph = decoder(1, experts=8, shared=64)
    labels = branch_labels(graph)
    named = {
        node.target.removeprefix("layers.0."): labels[node.outputs[0]]
        for node in graph.nodes
        if node.outputs[0] in labels
    }
    routed, shared = "layers.0.mlp.experts", "layers.0.mlp.shared.down"
    assert named == {
        "mlp.router": routed,
        "moe.route": routed,
        "mlp.experts": routed,
        "mlp.shared.gate_up": shared,
        "silu_mul": shared,
        "mlp.shared.down": shared,
    }
    program = program_of(graph, tp=2)
    labelled = {i.beside for i in program.instructions if isinstance(i, Call)}
    assert labelled == {"", routed, shared}


def test_a_dense_layer_has_no_branches() -> None:
    assert branch_labels(decoder(2)) == {}
