"""gloo between real processes: what collectives compute, and what becomes of ranks that fail."""

from __future__ import annotations

import random
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tokenspeed.contracts.communicator import OPTIONAL_METHODS
from tokenspeed.ops.ranks import on_ranks
from tokenspeed_reference import gloo
from tokenspeed_reference.gloo import MESSAGE_BYTES, GlooCommunicator
from tokenspeed_sdk.collectives import serve_store
from tokenspeed_sdk.conformance.communicator_check import check_faults, outcomes
from tokenspeed_sdk.testkit.rank_processes import Failure, RankProcesses, join_group

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = MESSAGE_BYTES  # floats: four first messages
SIZES = (2, 4)


@pytest.fixture(scope="module")
def four() -> Iterator[RankProcesses]:
    with RankProcesses(GlooCommunicator, 4) as ranks:
        assert ranks.join("two", range(2)) == [None] * 2
        assert ranks.join("four") == [None] * 4
        yield ranks


def on(ranks: RankProcesses, size: int, method: str, *args: Any, **options: Any) -> list[Any]:
    """Call with one argument a rank, each given by rank, and options alike or given by rank."""
    name = {2: "two", 4: "four"}[size]
    given = [
        (
            tuple(argument[rank] for argument in args),
            {key: item(rank) if callable(item) else item for key, item in options.items()},
        )
        for rank in range(size)
    ]
    results = ranks.call(name, method, given, range(size))
    assert not [item for item in results if isinstance(item, Failure)], results
    return results


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_collective_is_its_definition(four: RankProcesses, dtype: str) -> None:
    found = list(outcomes(four, {"dtype": (dtype,)}, dtype, seed=3))
    assert len(found) > 20
    assert [outcome for outcome in found if not outcome.agrees] == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [3, LARGE, LARGE + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_have_the_bits_of_a_sum_in_the_order_of_ranks(
    four: RankProcesses, size: int, count: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(count)
    inputs = [(torch.randn(count) * 10.0**rank).to(dtype) for rank in range(size)]
    wanted = torch.zeros(count)
    for x in inputs:
        wanted = wanted + x.float()
    for got in on(four, size, "all_reduce", inputs):
        assert torch.equal(got, wanted.to(dtype))
    part = count // size
    stacked = [x[: part * size].view(size, part) for x in inputs]
    for rank, got in enumerate(on(four, size, "reduce_scatter", stacked)):
        assert torch.equal(got[0], wanted[: part * size].view(size, part)[rank].to(dtype))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [1, LARGE])
def test_rows_of_uneven_counts_are_joined_and_exchanged(
    four: RankProcesses, size: int, rows: int
) -> None:
    counts = [rank * rows for rank in range(size)]
    inputs = [torch.full((count, 2), rank, dtype=torch.int64) for rank, count in enumerate(counts)]
    for got in on(four, size, "all_gather", inputs, sizes=counts):
        assert torch.equal(got, torch.cat(inputs))
    table = [[(sender + 2 * to) % 3 * rows for to in range(size)] for sender in range(size)]
    sent = [
        torch.cat([torch.full((n, 2), 10.0 * sender + to) for to, n in enumerate(table[sender])])
        for sender in range(size)
    ]
    results = on(
        four,
        size,
        "all_to_all",
        sent,
        send_sizes=lambda rank: table[rank],
        receive_sizes=lambda rank: [row[rank] for row in table],
    )
    for to, got in enumerate(results):
        wanted = [torch.full((table[s][to], 2), 10.0 * s + to) for s in range(size)]
        assert torch.equal(got, torch.cat(wanted))


@pytest.mark.parametrize("count", [0, 5, LARGE])
def test_a_tensor_is_sent_to_one_rank_and_to_all(four: RankProcesses, count: int) -> None:
    x = torch.arange(count).to(torch.bfloat16)
    inputs = [x if rank == 1 else torch.zeros_like(x) for rank in range(4)]
    for got in on(four, 4, "broadcast", inputs, root=1):
        assert torch.equal(got, x)
    four.start(1, send, "four", x, 3)
    (got,) = four.call("four", "receive", [((torch.zeros_like(x),), {"source": 1})], [3])
    assert torch.equal(got, x)
    assert four.answer(1) is None


def send(state: Any, name: str, x: torch.Tensor, to: int) -> None:
    state.groups[name].send(x, to=to)


def test_the_rows_and_the_columns_of_a_mesh_are_groups_of_their_own() -> None:
    store, address = serve_store("127.0.0.1")
    groups = {"row 0": [0, 1], "row 1": [2, 3], "column 0": [0, 2], "column 1": [1, 3]}
    with RankProcesses(GlooCommunicator, 4) as ranks:
        for name, members in groups.items():
            rendezvous = f"{address}/{name.replace(' ', '-')}"
            assert ranks.join(name, members, rendezvous=rendezvous) == [None, None]
        for name, members in groups.items():
            inputs: list[Any] = [((torch.tensor([float(member)]),), {}) for member in members]
            results = ranks.call(name, "all_reduce", inputs, members)
            assert not [item for item in results if isinstance(item, Failure)], results
            assert [got.tolist() for got in results] == [[float(sum(members))]] * 2
    del store


def test_rows_that_nobody_expects_break_the_group_on_every_rank(four: RankProcesses) -> None:
    assert four.join("rows", range(2)) == [None] * 2
    x = torch.ones(3, 2)
    given: list[Any] = [
        ((x,), {"send_sizes": [1, 2], "receive_sizes": [1, 2]}),
        ((x,), {"send_sizes": [1, 2], "receive_sizes": [2, 2]}),
    ]
    for result in four.call("rows", "all_to_all", given, range(2)):
        assert "rank 0 expects [1, 2] rows, the others send [1, 1]" in result.message


def test_wrong_arguments_leave_the_group_as_it_was(four: RankProcesses) -> None:
    given: list[Any] = [((torch.ones(3, 2),), {"sizes": [1, 1]})]
    (result,) = four.call("two", "all_gather", given, [0])
    assert result.kind == "ValueError"
    ones = [torch.ones(2)] * 2
    assert [got.tolist() for got in on(four, 2, "all_reduce", ones)] == [[2.0, 2.0]] * 2


def test_a_rank_that_fails_is_named_on_every_rank_in_time() -> None:
    with RankProcesses(GlooCommunicator, 3) as ranks:
        check_faults(ranks)


def test_what_comes_to_its_end_after_a_wait_for_it_was_over_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the other rank about as late as a wait is long, many calls end right behind one."""
    monkeypatch.setattr(gloo, "SLICE", timedelta(milliseconds=1))
    draw = random.Random(5)

    def meet(ranks: GlooCommunicator, _: None) -> None:
        x = torch.ones(2)
        for _ in range(400):
            if ranks.rank == 1:
                time.sleep(draw.uniform(0.0005, 0.0015))
            assert ranks.all_reduce(x).tolist() == [2.0, 2.0]

    on_ranks(GlooCommunicator, [None, None], meet)


def test_a_group_that_is_not_complete_names_who_is_missing() -> None:
    with RankProcesses(GlooCommunicator, 2) as ranks:
        assert ranks.join("two") == [None] * 2  # both run before the third is waited for
        start = f"half-{uuid.uuid4()}"
        arguments = [("half", GlooCommunicator, rank, 3, start, 2.0) for rank in range(2)]
        for _ in range(2):  # the second time beside what the first left
            for result in ranks.run(join_group, arguments):
                assert result.kind == "EngineError"
                assert "rank 2 did not come within 2 s" in result.message


def test_declared_features_are_the_methods_that_are_there() -> None:
    for feature, methods in OPTIONAL_METHODS.items():
        for method in methods:
            is_there = hasattr(GlooCommunicator, method)
            assert is_there is (feature in GlooCommunicator.features)
