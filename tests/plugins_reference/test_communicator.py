"""The communicator between threads: uneven sizes, ranks that fail, leave, or never come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tokenspeed.contracts.communicator import OPTIONAL_METHODS
from tokenspeed.errors import EngineError
from tokenspeed.ops.ranks import on_ranks
from tokenspeed_reference import rendezvous
from tokenspeed_reference.communicator import ThreadCommunicator

COLLECTIVES: dict[str, Callable[[ThreadCommunicator], object]] = {
    "all_reduce": lambda ranks: ranks.all_reduce(torch.ones(3)),
    "all_gather": lambda ranks: ranks.all_gather(torch.ones(3, 2)),
    "reduce_scatter": lambda ranks: ranks.reduce_scatter(torch.ones(6, 2)),
    "all_to_all": lambda ranks: ranks.all_to_all(
        torch.ones(ranks.size, 2), send_sizes=[1] * ranks.size, receive_sizes=[1] * ranks.size
    ),
    "broadcast": lambda ranks: ranks.broadcast(torch.ones(3)),
    "barrier": lambda ranks: ranks.barrier(),
}


def make_group(size: int, name: str, *, timeout_s: float = 20.0) -> list[ThreadCommunicator]:
    return [
        ThreadCommunicator(
            rank=rank,
            size=size,
            rendezvous=name,
            device=torch.device("cpu"),
            timeout_s=timeout_s,
        )
        for rank in range(size)
    ]


def run(calls: list[Callable[[], object]]) -> list[Any]:
    """Run each call in a thread; return what it gave or raised."""
    results: list[Any] = [None] * len(calls)

    def one(index: int) -> None:
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


@pytest.fixture(autouse=True)
def no_group_is_left() -> Any:
    others = set(rendezvous._GROUPS)  # of engines that other tests left open
    yield
    assert set(rendezvous._GROUPS) <= others


def close(group: list[ThreadCommunicator]) -> None:
    for ranks in group:
        ranks.close()


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_group_of_one_waits_for_nobody(name: str) -> None:
    (alone,) = make_group(1, "alone", timeout_s=0.01)
    COLLECTIVES[name](alone)
    alone.close()
    alone.close()


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_rank_that_raises_gives_the_others_its_reason(name: str) -> None:
    group = make_group(3, "raises")

    def fail() -> None:
        group[1].abort("ValueError: weights are damaged")

    calls = [lambda: COLLECTIVES[name](group[0]), fail, lambda: COLLECTIVES[name](group[2])]
    first, _, third = run(calls)
    for error in (first, third):
        assert isinstance(error, EngineError)
        assert "rank 1 failed: ValueError: weights are damaged" in str(error)
    with pytest.raises(EngineError, match="is broken"):
        COLLECTIVES[name](group[0])
    close(group)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_rank_that_never_comes_is_named_in_time(name: str) -> None:
    group = make_group(3, "late", timeout_s=0.5)
    results = run([lambda: COLLECTIVES[name](group[0]), lambda: COLLECTIVES[name](group[2])])
    for error in results:
        assert isinstance(error, EngineError)
        assert f"rank 1 did not come to {name}" in str(error)
        assert "within 0.5 s" in str(error)
    close(group)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_rank_that_left_in_peace_is_not_waited_for(name: str) -> None:
    group = make_group(2, "left")
    group[0].close()
    with pytest.raises(EngineError, match=f"rank 0 has left before rank 1 called {name}"):
        COLLECTIVES[name](group[1])
    close(group)


def test_a_rank_that_leaves_while_others_wait_is_named() -> None:
    group = make_group(2, "leaves")

    def leave() -> None:
        while not group[0]._group._round.items:
            time.sleep(0.001)
        group[0].close()

    error, _ = run([group[1].barrier, leave])
    assert isinstance(error, EngineError)
    assert "rank 0 has left while others wait in barrier" in str(error)
    close(group)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda ranks: ranks.barrier(), COLLECTIVES["all_reduce"]),
        (COLLECTIVES["all_reduce"], lambda ranks: ranks.all_reduce(torch.ones(4))),
        (COLLECTIVES["all_reduce"], lambda ranks: ranks.all_reduce(torch.ones(3).half())),
        (COLLECTIVES["broadcast"], lambda ranks: ranks.broadcast(torch.ones(3), root=1)),
        (COLLECTIVES["all_gather"], lambda ranks: ranks.all_gather(torch.ones(4, 2))),
    ],
)
def test_calls_that_do_not_match_break_the_group_on_every_rank(one: Any, two: Any) -> None:
    group = make_group(2, "mismatch")
    for error in run([lambda: one(group[0]), lambda: two(group[1])]):
        assert isinstance(error, EngineError)
        assert "calls do not match (rank 0: " in str(error)
    close(group)


def test_rows_that_nobody_expects_break_the_group() -> None:
    group = make_group(2, "rows")
    x = torch.ones(3, 2)
    calls = [
        lambda: group[0].all_to_all(x, send_sizes=[1, 2], receive_sizes=[1, 2]),
        lambda: group[1].all_to_all(x, send_sizes=[1, 2], receive_sizes=[2, 2]),
    ]
    first, second = run(calls)
    assert isinstance(first, EngineError)
    assert "rank 0 expects [1, 2] rows, the others send [1, 1]" in str(first)
    assert isinstance(second, (EngineError, torch.Tensor))
    close(group)


@pytest.mark.parametrize(
    "call",
    [
        lambda ranks: ranks.all_reduce(torch.ones(3), reduction="mean"),
        lambda ranks: ranks.all_gather(torch.ones(3, 2), sizes=[1, 1]),
        lambda ranks: ranks.all_gather(torch.ones(3, 2), sizes=[3]),
        lambda ranks: ranks.reduce_scatter(torch.ones(3, 2)),
        lambda ranks: ranks.reduce_scatter(torch.ones(3, 2), sizes=[2, 2]),
        lambda ranks: ranks.reduce_scatter(torch.ones(3, 2), sizes=[4, -1]),
        lambda ranks: ranks.all_to_all(torch.ones(3), send_sizes=[1, 1], receive_sizes=[1, 1]),
        lambda ranks: ranks.broadcast(torch.ones(3), root=2),
    ],
)
def test_wrong_arguments_are_refused_before_the_others_are_met(call: Any) -> None:
    group = make_group(2, "arguments")
    with pytest.raises(ValueError, match=r"allowed|sizes|rows|root"):
        call(group[0])
    results = run([lambda ranks=ranks: ranks.all_reduce(torch.ones(2)) for ranks in group])
    assert [result.tolist() for result in results] == [[2.0, 2.0]] * 2
    close(group)


def test_groups_of_other_sizes_and_ranks_outside_are_refused() -> None:
    group = make_group(2, "sizes")
    with pytest.raises(ValueError, match="has 2 ranks, rank 0 says 3"):
        make_group(3, "sizes")
    with pytest.raises(ValueError, match="rank is 2"):
        rendezvous.join("sizes", 2, 2)
    close(group)
    with pytest.raises(ValueError, match="has left"):
        group[0].barrier()


def test_sums_are_the_same_bits_on_every_rank_and_in_the_order_of_ranks() -> None:
    inputs = [torch.tensor([value]) for value in (1e8, 1.0, -1e8)]
    got = on_ranks(ThreadCommunicator, inputs, lambda ranks, x: ranks.all_reduce(x))
    wanted = (inputs[0] + inputs[1]) + inputs[2]
    assert all(torch.equal(one, wanted) for one in got)


def test_a_tensor_may_be_overwritten_once_the_call_has_returned() -> None:
    def rounds(ranks: ThreadCommunicator, x: torch.Tensor) -> list[float]:
        seen = []
        for _ in range(50):
            seen.append(float(ranks.all_reduce(x)))
            x.fill_(float(ranks.rank))
            x.add_(len(seen))
        return seen

    first, second, third = on_ranks(ThreadCommunicator, [torch.zeros(1) for _ in range(3)], rounds)
    assert first == second == third == [0.0] + [3.0 + 3 * step for step in range(1, 50)]


def test_the_first_failure_of_a_rank_is_what_the_caller_sees() -> None:
    def call(ranks: ThreadCommunicator, fails: bool) -> None:
        if fails:
            raise RuntimeError("this rank is damaged")
        ranks.barrier()

    with pytest.raises((RuntimeError, EngineError), match="this rank is damaged"):
        on_ranks(ThreadCommunicator, [False, True, False], call)


def test_declared_features_are_the_methods_that_are_there() -> None:
    for feature, methods in OPTIONAL_METHODS.items():
        for method in methods:
            is_there = hasattr(ThreadCommunicator, method)
            assert is_there is (feature in ThreadCommunicator.features)
