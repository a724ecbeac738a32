"""Operators over a step's rows and its cache: heads, queries and rows cut, and put together.

A rank's cache holds its kv heads; with rows of its own it has a step of its own.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tokenspeed.contracts.attention import KVView
from tokenspeed.contracts.kernel import Domain
from tokenspeed.errors import PlacementError
from tokenspeed.ops import OPERATORS
from tokenspeed.ops.batches import ROWS, batch_of, cache_for
from tokenspeed.ops.compare import copied, map_tensors
from tokenspeed.ops.draw import Draw
from tokenspeed.placement.graph import Kind, Node, Ref, StepArgument, Value
from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.rule import parse, place
from tokenspeed_sdk.conformance.cut_tensors import assert_held, held, mesh_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.attention import AttentionBatch
    from tokenspeed.placement.rule import Placed

T = (TOKENS,)
STEPS = ["decodes, then prompts and chunks", "chunks after a cached prefix"]


def wide(value: Any) -> Any:
    return map_tensors(value, lambda x: x.double() if x.is_floating_point() else x.clone())


def attention_node(heads: int, kv_heads: int, dims: tuple[int, int]) -> tuple[Node, Any]:
    """Return the call that a layer makes: q, k, v and the step; with sinks."""
    key_dim, value_dim = dims
    shapes = ((heads, key_dim), (kv_heads, key_dim), (kv_heads, value_dim))
    values = [
        Value(number, (T, (count,), (dim,)), "float64", "qkv"[number])
        for number, (count, dim) in enumerate(shapes)
    ]
    node = Node(
        Kind.MODULE,
        "attend",
        (*map(Ref, range(3)), StepArgument()),
        (3,),
        rule=parse(OPERATORS["attention.paged"].placement),
        weights=(((heads,),),),
    )
    return node, values


class Attention:
    """One step's attention on the whole, and what ranks compute of it."""

    def __init__(self, name: str, heads: int, kv_heads: int, *, latent: bool = False) -> None:
        draw = Draw(Domain("float64"))
        self.batch = batch_of(ROWS[name], 16, draw)
        tokens = int(self.batch.query_start[-1])
        traits = {"cache": "mla", "v_head_dim": 6} if latent else {}
        self.cache = wide(cache_for(self.batch, kv_heads, 8, draw, traits))
        self.q = draw.floats(tokens, heads, 8)
        self.sinks = draw.floats(heads)
        self.node, self.values = attention_node(heads, kv_heads, (8, 6 if latent else 8))
        self.whole = self.run(self.q, self.cache, self.batch, self.sinks)

    def run(
        self, q: torch.Tensor, cache: KVView, batch: AttentionBatch, sinks: torch.Tensor
    ) -> torch.Tensor:
        result: torch.Tensor = OPERATORS["attention.paged"].signature(
            q, cache, batch, scale=0.3, sinks_N=sinks
        )
        return result

    def check_heads(self, sizes: tuple[int, ...], choices: Mapping[str, str]) -> None:
        mesh = mesh_of(*sizes)
        placed = place(self.node, self.values, choices, mesh)
        got = []
        for rank in range(mesh.world):
            q = held(self.q, placed.inputs[0], mesh, rank)
            cache = cache_of(self.cache, placed, mesh, rank)
            got.append(
                self.run(q, cache, self.batch, held(self.sinks, placed.inputs[3], mesh, rank))
            )
        assert_held(got, self.whole, placed.outputs[0], mesh)


def cache_of(cache: KVView, placed: Placed, mesh: Any, rank: int) -> KVView:
    """Return a rank's heads of a cache, as the layouts of k and v say."""
    k, v = (
        held(x.transpose(0, 1), replace(layout, dims=layout.dims[1:2]), mesh, rank).transpose(0, 1)
        for x, layout in zip((cache.k, cache.v), placed.inputs[1:3], strict=True)
    )
    return KVView(k, v)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "sizes", "choices"),
    [
        (4, 2, (2,), {"a": "K"}),
        (6, 3, (3,), {"a": "K"}),
        (4, 1, (2,), {"a": "N"}),
        (8, 2, (2, 2), {"a": "K", "b": "N"}),
        (12, 2, (2, 3), {"a": "K", "b": "N"}),
        (12, 4, (2, 2), {"a": "K", "b": "K"}),
        (12, 6, (3, 2), {"a": "K", "b": "K"}),
    ],
)
def test_attention_over_heads_and_shared_kv_heads(
    name: str, heads: int, kv_heads: int, sizes: tuple[int, ...], choices: dict[str, str]
) -> None:
    Attention(name, heads, kv_heads).check_heads(sizes, choices)


@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 3)])
def test_latent_attention_over_query_heads(sizes: tuple[int, ...]) -> None:
    choices = dict.fromkeys("ab"[: len(sizes)], "N")
    Attention(STEPS[0], 6, 1, latent=True).check_heads(sizes, choices)


def test_kv_heads_are_shared_only_one_at_a_time() -> None:
    attention = Attention(STEPS[0], 12, 6)
    message = "found 6 units of K over 4 ranks, expected a cut over 1, 2, 3, 6, 12;"
    with pytest.raises(PlacementError, match=message):
        attention.check_heads((2, 2), {"a": "K", "b": "N"})


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("name", STEPS)
def test_attention_over_queries_and_the_whole_cache(name: str, ranks: int) -> None:
    attention = Attention(name, 4, 2)
    bounds = np.linspace(0, len(attention.q), ranks + 1).astype(int)
    parts = [
        attention.run(
            attention.q[low:high],
            attention.cache,
            queries_of(attention.batch, int(low), int(high)),
            attention.sinks,
        )
        for low, high in pairwise(bounds)
    ]
    torch.testing.assert_close(torch.cat(parts), attention.whole, rtol=1e-9, atol=1e-9)


def queries_of(batch: AttentionBatch, low: int, high: int) -> AttentionBatch:
    """Return the rows of the queries [low, high): what is before them in a row is cached."""
    starts, stops = batch.query_start[:-1].clip(low, high), batch.query_start[1:].clip(low, high)
    return replace(
        batch,
        query_start=np.concatenate([[0], np.cumsum(stops - starts)]).astype(np.int32),
        context_tokens=batch.context_tokens + (starts - batch.query_start[:-1]).clip(0),
        positions_T=batch.positions_T[low:high],
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_keys_and_values_are_written_to_a_ranks_heads(ranks: int) -> None:
    draw = Draw(Domain("float64"))
    batch = batch_of(ROWS[STEPS[0]], 16, draw)
    cache = wide(cache_for(batch, 6, 8, draw))
    k, v = (draw.floats(int(batch.query_start[-1]), 6, 8) for _ in range(2))
    write = OPERATORS["kv.write"]
    values = [Value(number, (T, (6,), (8,)), "float64", "") for number in range(2)]
    node = Node(Kind.OPERATOR, "write", (Ref(0), Ref(1)), (), rule=parse(write.placement))
    mesh = mesh_of(ranks)
    placed = place(node, values, {"a": "K"}, mesh)
    mine = []
    for rank in range(ranks):
        own_k, own_v = (held(x, placed.inputs[0], mesh, rank) for x in (k, v))
        width = 6 // ranks
        own = KVView(*(copied(x[:, rank * width :][:, :width], "cpu") for x in (cache.k, cache.v)))
        write.signature(own_k, own_v, own, batch)
        mine.append(own)
    write.signature(k, v, cache, batch)
    for name in ("k", "v"):
        joined = torch.cat([getattr(own, name) for own in mine], 1)
        assert torch.equal(joined, getattr(cache, name))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "name", ["conv.causal_silu", "linear_attention.gated_delta", "kda.delta_rule"]
)
def test_rows_with_a_state_over_ranks(name: str, ranks: int) -> None:
    operator = OPERATORS[name]
    assert operator.cases is not None
    cases = {case.name: case for case in operator.cases(Domain())}
    arguments = wide(list(cases["steps of one token"].args))
    before = copied(arguments, "cpu")
    whole = operator.signature(*arguments)
    num_tokens = len(operator.tokens)
    *inputs, rows, query_start = before
    parts = []
    for low, high in pairwise(np.linspace(0, len(query_start) - 1, ranks + 1).astype(int)):
        tokens = slice(int(query_start[low]), int(query_start[high]))
        own = [x[tokens] if number < num_tokens else x for number, x in enumerate(inputs)]
        own_rows = replace(rows, read_R=rows.read_R[low:high], write_R=rows.write_R[low:high])
        start = query_start[low : high + 1] - query_start[low]
        parts.append(operator.signature(*own, own_rows, start))
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-9, atol=1e-9)
    states = (arguments[len(inputs) - 1], inputs[-1])
    torch.testing.assert_close(*states, rtol=1e-9, atol=1e-9)
