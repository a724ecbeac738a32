"""A tiny model on a mesh of threads, fed with what one rank decoded: the logits of every rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tests.support.hand_driven import BLOCK_TOKENS, HandDriven, build, tables_of
from tests.support.rank_threads import on_ranks
from tests.support.traced_models import even, random_weights
from tests.support.traced_models import model_class as served_by

from tokenspeed.contracts.attention import AttentionBatch
from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.executor.connections import GroupConnections
from tokenspeed.executor.placed_model import PlacedModel
from tokenspeed.executor.token_counts import TokenCounts
from tokenspeed.placement.compiled import compile_model
from tokenspeed.placement.mesh import build_mesh
from tokenspeed_reference.gloo import GlooCommunicator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.hand_driven import Stream, Weights

    from tokenspeed.contracts.model import ForwardContext
    from tokenspeed.placement.compiled import CompiledModel
    from tokenspeed.placement.cost import CostModel
    from tokenspeed.placement.expert_load import ExpertLoad
    from tokenspeed.placement.mesh import Degrees, Mesh
    from tokenspeed_sdk.testkit.rank_processes import RankState

Fed = list[tuple[int, list[int]]]
"""Of one step: (sequence, tokens that it is fed)."""


@dataclass(slots=True)
class Noted(HandDriven):
    """One rank that notes what it was fed and what came out."""

    fed: list[Fed] = field(default_factory=list)
    logits: list[list[torch.Tensor]] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)

    def step(self, rows: Sequence[tuple[Stream, Sequence[int]]]) -> list[torch.Tensor]:
        """Note a step."""
        for stream, _ in rows:
            if not any(stream is known for known in self.streams):
                self.streams.append(stream)
        numbers = [
            next(index for index, known in enumerate(self.streams) if known is stream)
            for stream, _ in rows
        ]
        tokens = [list(own) for _, own in rows]
        self.fed.append(list(zip(numbers, tokens, strict=True)))
        self.logits.append(HandDriven.step(self, rows))
        return self.logits[-1]


@dataclass(slots=True)
class OneOfMany(HandDriven):
    """One rank of a mesh: its partition's rows, the queries that it attends for."""

    mesh: Mesh | None = None
    rank: int = 0
    partition_tokens: Sequence[int] = ()

    def _context(self, streams: Sequence[Stream], lengths: Sequence[int]) -> ForwardContext:
        context = HandDriven._context(self, streams, lengths)
        context.partition_tokens = self.partition_tokens
        assert self.mesh is not None
        queries = self.mesh.groups[ParallelGroup.ATTN_CP]
        if queries:
            axes = (*self.mesh.groups[ParallelGroup.ATTN_DP], *queries)
            counts = TokenCounts(self.mesh, self.partition_tokens)
            sizes = counts.sizes(axes, queries, self.rank)
            start = sum(sizes[: self.mesh.place(self.rank, queries)])
            own = start, start + counts.local(axes, self.rank)
            context.query_metadata = self._plan_queries(streams, lengths, own)
        return context

    def _plan_queries(
        self, streams: Sequence[Stream], lengths: Sequence[int], own: tuple[int, int]
    ) -> Mapping[str, object]:
        """Plan attention for the tokens [own) of the step: pieces of rows."""
        ends = np.cumsum(lengths)
        pieces = []
        for stream, end, length in zip(streams, ends.tolist(), lengths, strict=True):
            low, high = max(own[0], end - length), min(own[1], end)
            if high > low:
                pieces.append((stream, stream.num_tokens + low - (end - length), high - low))
        query_start = np.cumsum([0, *(count for *_, count in pieces)], dtype=np.int32)
        contexts = np.array([first for _, first, _ in pieces], np.int32)
        positions = [np.arange(first, first + count) for _, first, count in pieces]
        return {
            group.name: self.attention[group.name].plan(
                AttentionBatch(
                    query_start=query_start,
                    context_tokens=contexts,
                    num_decode_rows=0,
                    block_tables=tables_of([stream for stream, *_ in pieces], group.window),
                    block_tokens=BLOCK_TOKENS,
                    positions_T=torch.from_numpy(np.concatenate([*positions, np.arange(0)])),
                    window=group.window,
                )
            )
            for group in self.groups
            if group.kind != "state"
        }


def plain_run(
    model_class: Any,
    config: Mapping[str, Any],
    weights: Weights,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    chunk_tokens: int,
) -> Noted:
    """Decode prompts on one rank."""
    built = build(model_class, config)
    built.model.load_weights(weights(built.model))
    noted = Noted(built.model, built.groups, built.attention, built.views)
    noted.decode(prompts, num_tokens, chunk_tokens=chunk_tokens)
    return noted


def placed_logits(
    model_class: Any,
    config: Mapping[str, Any],
    weights: Weights,
    fed: Sequence[Fed],
    mesh: Mesh,
    *,
    compiled: CompiledModel | None = None,
    balance_steps: int = 0,
    loads: dict[int, ExpertLoad] | None = None,
) -> list[list[list[torch.Tensor]]]:
    """Feed every rank, a thread each, what a plain run was fed; return logits by rank and step.

    Sequence i runs in partition i modulo their number.

    Args:
        compiled: what the ranks run; None: the model as it is compiled for small steps.
        balance_steps: experts are moved so often.
        loads: of experts; filled by rank.
    """
    if compiled is None:
        compiled = compile_model(model_class, config, mesh, dtype="float32", tokens=8)

    def work(rank: int, connections: GroupConnections) -> list[list[torch.Tensor]]:
        torch.set_num_threads(1)
        driven = _rank(model_class, config, weights, compiled, rank, connections, balance_steps)
        if loads is not None:
            loads[rank] = driven.model.balancer.load
        return _feed(driven, fed, mesh, rank)

    return on_ranks(mesh, work)


def process_logits(
    state: RankState,
    name: str,
    degrees: Degrees,
    rendezvous: str,
    fed: Sequence[Fed],
    cost: CostModel | None = None,
) -> list[list[torch.Tensor]]:
    """Do the same as one process of several, over gloo.

    Args:
        name: of a tiny checkpoint.
        rendezvous: text that the ranks of this call share.
        cost: the model is compiled by; None: the usual.
    """
    config = even(name)
    served = served_by(config)
    mesh = build_mesh(degrees)
    compiled = compile_model(served, config, mesh, dtype="float32", cost=cost, tokens=8)
    connections = GroupConnections(
        mesh, state.rank, GlooCommunicator,
        rendezvous=rendezvous, device=torch.device("cpu"), timeout_s=20.0,
    )  # fmt: skip
    driven = _rank(served, config, random_weights, compiled, state.rank, connections)
    logits = _feed(driven, fed, mesh, state.rank)
    connections.close()
    return logits


def check_logits(plain: Noted, ranks: Sequence[list[list[torch.Tensor]]], degrees: Degrees) -> None:
    """Compare the last stage's ranks, each with its partition's rows of the plain run."""
    for rank, steps in enumerate(ranks[: degrees.stage_ranks]):
        partition = rank // (degrees.tp * degrees.cp) % degrees.dp
        for fed, wanted, got in zip(plain.fed, plain.logits, steps, strict=True):
            own = [
                logits
                for (number, _), logits in zip(fed, wanted, strict=True)
                if number % degrees.dp == partition
            ]
            assert len(own) == len(got)
            for one, other in zip(own, got, strict=True):
                # Logits reach 10; recurrent layers carry rounding on, by how much the CPU decides.
                torch.testing.assert_close(other, one, rtol=1e-4, atol=5e-4)
                assert torch.equal(other.argmax(-1), one.argmax(-1))


def _feed(driven: OneOfMany, fed: Sequence[Fed], mesh: Mesh, rank: int) -> list[list[torch.Tensor]]:
    dp = mesh.degrees.dp
    partition = mesh.place(rank, mesh.groups[ParallelGroup.ATTN_DP])
    streams: dict[int, Stream] = {}
    logits = []
    for step in fed:
        driven.partition_tokens = [
            sum(len(tokens) for number, tokens in step if number % dp == own) for own in range(dp)
        ]
        rows = []
        for number, tokens in step:
            if number % dp == partition:
                stream = streams.get(number) or driven.start()
                streams[number] = stream
                rows.append((stream, tokens))
        logits.append(driven.step(rows))
    return logits


def _rank(
    model_class: Any,
    config: Mapping[str, Any],
    weights: Weights,
    compiled: CompiledModel,
    rank: int,
    connections: GroupConnections,
    balance_steps: int = 0,
) -> OneOfMany:
    built = build(model_class, config, shards=compiled.shards(rank))
    placed = PlacedModel(
        built.model,
        compiled,
        rank=rank,
        kernels=built.kernels,
        connections=connections,
        balance_steps=balance_steps,
    )
    skipped = placed.skipped_weights()  # held by other ranks alone: nobody misses them here
    placed.load_weights(item for item in weights(built.model) if item[0] not in skipped)
    assert placed.held_bytes > 0
    return OneOfMany(
        placed, built.groups, built.attention, built.views, mesh=compiled.mesh, rank=rank
    )
