"""What the compiler makes of decoders: where ranks talk, what serves whom, and what is refused."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import pytest
from tests.support.graphs import LINEAR, NORM, GraphBuilder, T, decoder
from tests.support.traced_models import PUBLISHED, model_class

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.errors import PlacementError
from tokenspeed.placement.compiler import compile_graph
from tokenspeed.placement.cost import CostModel, Link
from tokenspeed.placement.graph import Graph
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.program import Call, Move, Passed, Program
from tokenspeed.placement.text import layout_text
from tokenspeed.placement.trace import trace

LARGE = {"hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "features": 8192}


def compiled(
    graph: Graph, tokens: int = 256, *, cost: CostModel | None = None, **degrees: int
) -> tuple[Program, ...]:
    return compile_graph(graph, build_mesh(Degrees(**degrees)), cost or CostModel(), tokens)


def moves(program: Program) -> list[str]:
    """Return the moves with traffic, as "collective axes"."""
    return [
        f"{item.collective.value} {''.join(item.axes)}"
        for item in program.instructions
        if isinstance(item, Move) and item.bytes_per_token
    ]


def layouts_of(program: Program, target: str) -> tuple[str, ...]:
    """Return the layouts of the inputs of the first call of this name."""
    call = next(
        item
        for item in program.instructions
        if isinstance(item, Call) and item.node.target.endswith(target)
    )
    return tuple(map(layout_text, call.input_layouts))


def test_one_rank_runs_the_nodes_and_nothing_else() -> None:
    graph = decoder(2)
    (program,) = compiled(graph)
    assert [item.node for item in program.instructions if isinstance(item, Call)] == [*graph.nodes]
    assert len(program.instructions) == len(graph.nodes)
    assert program.num_registers == len(graph.values)


def test_a_dense_layer_sums_twice() -> None:
    (program,) = compiled(decoder(3), tp=4)
    assert moves(program) == ["all_reduce ab"] * (1 + 2 * 3)


def test_kv_heads_go_as_far_as_they_can() -> None:
    (program,) = compiled(decoder(1, heads=8, kv_heads=2), tp=4)
    q, k, v = layouts_of(program, "attend")
    assert (q, k, v) == ("(T, 8/ab, 16)", "(T, 2/a, 16)", "(T, 2/a, 16)")


def test_routed_and_shared_experts_are_summed_once() -> None:
    (program,) = compiled(decoder(2, experts=8, shared=64), tp=4, ep=2)
    assert moves(program) == ["all_reduce ab"] * (1 + 2 * 2)


def test_router_experts_and_shared_expert_read_one_gathered_copy() -> None:
    graph = decoder(1, experts=8, shared=8192, **LARGE)
    (program,) = compiled(graph, tokens=64, tp=2, dp=4, ep=8, dense_tp=8)
    takers = ("router", "experts", "shared.gate_up")
    assert {layouts_of(program, name)[0] for name in takers} == {"(T, 4096)"}
    layer = moves(program)
    assert Counter(name.split()[0] for name in layer)["all_gather"] <= 3, layer


def test_large_steps_normalise_a_part_of_the_tokens() -> None:
    graph = decoder(1, experts=8, **LARGE)
    (program,) = compiled(graph, tokens=4096, tp=2, dp=4, ep=8)
    assert layouts_of(program, "mlp_norm") == ("(T/abc, 4096)", "(T/abc, 4096)")
    assert "reduce_scatter c" in moves(program)
    assert "reduce_scatter abc" in moves(program)


def test_small_steps_save_latency_and_large_ones_bytes() -> None:
    graph, cost = decoder(1, experts=8, **LARGE), CostModel(Link(50, 300), Link(50, 300))
    (small,), (large,) = (
        compiled(graph, tokens, cost=cost, tp=2, dp=4, ep=8) for tokens in (1, 65536)
    )
    assert len(moves(small)) < len(moves(large))
    assert sent(small) > sent(large)


def sent(program: Program) -> float:
    return sum(item.bytes_per_token for item in program.instructions if isinstance(item, Move))


def test_context_parallel_attention_takes_some_queries_and_all_keys() -> None:
    (program,) = compiled(decoder(1), cp=2)
    assert layouts_of(program, "attend") == ("(T/a, 8, 16)", "(T, 4, 16)", "(T, 4, 16)")


def test_partitions_of_requests_need_no_traffic() -> None:
    (program,) = compiled(decoder(2), dp=2)
    assert moves(program) == []
    assert layouts_of(program, "embedding") == ("(T/a)",)


def test_results_are_those_of_the_partition_or_whole() -> None:
    graph, mesh = decoder(1), build_mesh(Degrees(tp=2, dp=2))
    for is_whole, wanted in ((False, "(T/a, 64)"), (True, "(T, 64)")):
        (program,) = compile_graph(graph, mesh, CostModel(), 64, whole_results=is_whole)
        made = {}
        for item in program.instructions:
            if isinstance(item, Call):
                made |= zip(item.outputs, item.output_layouts, strict=True)
            elif isinstance(item, Move):
                made[item.target] = item.after
        assert [layout_text(made[register]) for register in program.outputs] == [wanted]


@pytest.mark.parametrize("degrees", [{"pp": 2}, {"pp": 3, "tp": 2}, {"pp": 2, "dp": 2, "cp": 2}])
def test_what_a_stage_hands_on_the_next_one_takes(degrees: dict[str, int]) -> None:
    programs = compiled(decoder(3), **degrees)
    assert [program.stage for program in programs] == [*range(degrees["pp"])]
    for before, after in pairwise(programs):
        handed, taken = before.instructions[-1], after.instructions[0]
        assert isinstance(handed, Passed)
        assert handed == taken
        assert before.outputs == ()
    assert programs[-1].outputs
    layers = [
        sorted({item.node.layer for item in program.instructions if isinstance(item, Call)} - {-1})
        for program in programs
    ]
    assert [layer for some in layers for layer in some] == [0, 1, 2]


@pytest.mark.parametrize("degrees", [{"tp": 4}, {"pp": 2, "dp": 2, "ep": 4}, {"cp": 2, "tp": 2}])
def test_every_register_is_written_once_and_before_it_is_read(degrees: dict[str, int]) -> None:
    written: set[int] = set()
    for program in compiled(decoder(3, experts=8, shared=64), **degrees):
        assert not written & {*program.inputs}
        written |= {*program.inputs}
        for item in program.instructions:
            if isinstance(item, Passed):
                assert {*item.registers} <= written
                continue
            reads = (item.source,) if isinstance(item, Move) else item.inputs
            makes = (item.target,) if isinstance(item, Move) else item.outputs
            assert {*reads} <= written
            assert not {*makes} & written
            written |= {*makes}
        assert max(written) < program.num_registers


def test_equal_graphs_have_equal_digests_and_others_do_not() -> None:
    one, same, other = (
        compiled(decoder(2, features=features), tp=2)[0].digest for features in (128, 128, 256)
    )
    assert one == same != other
    assert one != compiled(decoder(2), tp=4)[0].digest
    assert len({program.digest for program in compiled(decoder(2), pp=2)}) == 2


def test_uneven_cuts_are_refused_with_what_is_possible() -> None:
    with pytest.raises(
        PlacementError, match=r"layers\.0\.qkv \(model\.py:3\) .*found 8 units of O over 3 ranks"
    ):
        compiled(decoder(1, vocab=300), tp=3)


def test_a_wrong_annotation_names_module_expected_and_found() -> None:
    build = GraphBuilder()
    x = build.take(T, (64,))
    y = build.call("norm", NORM, x, weights=(((64,),),), spread={"D": ParallelGroup.ATTN_TP})
    with pytest.raises(
        PlacementError, match=r"norm \(model.py:0\) spreads D over attn_tp, expected"
    ):
        compiled(build.build(y), tp=2)
    build = GraphBuilder()
    x = build.take(T, (64,))
    spread = {"I": ParallelGroup.ATTN_TP, "O": ParallelGroup.DENSE_TP}
    y = build.call("both", LINEAR, x, weights=(((64,), (64,)),), spread=spread)
    with pytest.raises(
        PlacementError, match=r"both \(model.py:0\) spreads both I and O over axis a"
    ):
        compiled(build.build(y), tp=2)


def test_what_no_layout_fits_is_refused_by_name() -> None:
    build = GraphBuilder()
    x = build.take(T, (64,))
    weight = ((16,), (32, 32))  # cut half by half, which nothing before it can be
    y = build.call("odd", LINEAR, x, weights=(weight,), spread={"I": ParallelGroup.ATTN_TP})
    with pytest.raises(
        PlacementError, match=r"odd \(model.py:0\) cannot be computed: of the layouts"
    ):
        compiled(build.build(y), tp=2)


@pytest.mark.parametrize(
    "degrees",
    [
        {"tp": 8, "ep": 8},
        {"tp": 2, "dp": 4, "ep": 8},
        {"tp": 8, "pp": 2, "ep": 4},
        {"dp": 32, "ep": 32},
    ],
)
def test_a_61_layer_model_compiles_in_less_than_a_second(degrees: dict[str, int]) -> None:
    config = PUBLISHED["deepseek-v3"]
    taken = []
    for _ in range(3):  # a busy machine is slow now and then
        start = time.process_time()
        graphs = trace(model_class(config), config)
        for graph in (graphs.forward, graphs.logits):
            compiled(graph, **degrees)
        taken.append(time.process_time() - start)
        if taken[-1] < 1.0:
            return
    pytest.fail(f"took {taken} s")
