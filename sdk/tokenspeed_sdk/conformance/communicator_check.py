"""Checks communicators whose ranks are processes: results, and what a failing rank does."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.ops import OPERATORS
from tokenspeed.ops.collective_calls import CALLS, calls_of
from tokenspeed.ops.compare import cases_within, compare
from tokenspeed_sdk import Domain
from tokenspeed_sdk.testkit.rank_processes import Failure, RankProcesses, RankState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenspeed.ops.compare import Outcome
    from tokenspeed_sdk import Communicator

MOST_RANKS = 5
"""Of the operators' cases."""
FAULT_TIMEOUT_S = 2.0
NAMED_WITHIN_S = FAULT_TIMEOUT_S + 6.0
ANSWERED_WITHIN_S = 4 * NAMED_WITHIN_S


@dataclass(frozen=True, slots=True)
class PluginOffer:
    """An offer by name, which another process can load."""

    plugin: str
    name: str

    def __call__(self, **options: Any) -> Communicator:
        """Load the plugin, and what it offers."""
        from tokenspeed_sdk import Offer
        from tokenspeed_sdk.conformance.subject import Subject

        for item in Subject.find(self.plugin).offers("communicator"):
            if isinstance(item.offer, Offer) and item.offer.name == self.name:
                communicator: Communicator = item.offer.load(**options)
                return communicator
        raise LookupError(f"plugin {self.plugin} offers no communicator {self.name!r}")


def outcomes(
    ranks: RankProcesses, declared: dict[str, tuple[object, ...]], dtype: str, *, seed: int
) -> Iterator[Outcome]:
    """Compare every collective with its definition, in groups of every size."""
    for size in range(1, ranks.size + 1):
        joined = ranks.join(f"first-{size}", range(size))
        assert joined == [None] * size, f"{size} ranks could not join: {joined}"
    for name in CALLS:
        operator, domain = OPERATORS[name], Domain(dtype, declared, seed)
        for case in cases_within(operator, domain):
            if len(case.args[0]) <= ranks.size:
                yield compare(operator, _computed(ranks, name), case, dtype=dtype)


def _computed(ranks: RankProcesses, operator: str) -> Any:
    def compute(*args: Any, **options: Any) -> list[Any]:
        calls = calls_of(operator, *args, **options)
        size = len(calls)
        method = calls[0][0]
        given = [(call[1], call[2]) for call in calls]
        results = ranks.call(f"first-{size}", method, given, range(size))
        failures = [item for item in results if isinstance(item, Failure)]
        assert not failures, f"{operator} on {size} ranks: {failures[0]}"
        return results

    return compute


def check_faults(ranks: RankProcesses) -> None:
    """Check that each kind of failure breaks the group on every rank, in time and with its name."""
    everybody = list(range(ranks.size))
    for victim in (everybody[-1], 0):
        others = [rank for rank in everybody if rank != victim]
        for check in (_check_abort, _check_mismatch, _check_left, _check_stopped):
            name = f"{check.__name__} {victim}"
            _join(ranks, name, everybody)
            check(ranks, name, others, victim)
    _check_killed(ranks, everybody[:-1], everybody[-1])
    if ranks.size > 2:  # who is left is a group again, which loses its first
        _check_killed(ranks, everybody[1:-1], 0)


def _check_abort(ranks: RankProcesses, name: str, others: Sequence[int], victim: int) -> None:
    ranks.run(abort, [(name, "ValueError: damaged")], [victim])
    _all_say(_reduced(ranks, name, others), f"rank {victim} failed: ValueError: damaged")


def _check_mismatch(ranks: RankProcesses, name: str, others: Sequence[int], victim: int) -> None:
    ranks.start(victim, reduce_ones, name, 4)
    results = _reduced(ranks, name, others)
    _all_say([*results, ranks.answer(victim, answer_s=ANSWERED_WITHIN_S)], "do not match")


def _check_left(ranks: RankProcesses, name: str, others: Sequence[int], victim: int) -> None:
    ranks.run(leave, [(name,)], [victim])
    _all_say(_reduced(ranks, name, others), f"rank {victim} has left")


def _check_stopped(ranks: RankProcesses, name: str, others: Sequence[int], victim: int) -> None:
    ranks.signal(victim, signal.SIGSTOP)
    results = _reduced(ranks, name, others)
    ranks.signal(victim, signal.SIGCONT)
    _all_say(results, f"rank {victim} did not come")


def _check_killed(ranks: RankProcesses, others: Sequence[int], victim: int) -> None:
    name, members = f"killed {victim}", sorted([*others, victim])
    _join(ranks, name, members)
    for member in others:
        ranks.start(member, reduce_ones, name, 3)
    ranks.signal(victim, signal.SIGKILL)
    results = [ranks.answer(member, answer_s=ANSWERED_WITHIN_S) for member in others]
    _all_say(results, f"rank {members.index(victim)} died")


def _join(ranks: RankProcesses, name: str, members: Sequence[int]) -> None:
    joined = ranks.join(name, members, timeout_s=FAULT_TIMEOUT_S)
    assert joined == [None] * len(members), f"the ranks could not join: {joined}"


def _reduced(ranks: RankProcesses, name: str, members: Sequence[int]) -> list[Any]:
    arguments = [(name, 3)] * len(members)
    return ranks.run(reduce_ones, arguments, members, answer_s=ANSWERED_WITHIN_S)


def _all_say(results: Sequence[Any], reason: str) -> None:
    for rank, result in enumerate(results):
        assert isinstance(result, Failure), f"rank {rank} got {result!r}, not: {reason}"
        assert result.kind == "EngineError", result
        assert reason in result.message, f"rank {rank} was not told {reason!r}: {result.message}"
        assert result.seconds < NAMED_WITHIN_S, f"rank {rank} was told after {result.seconds} s"


def reduce_ones(state: RankState, name: str, count: int) -> Any:
    """Reduce, and meet until it fails where calls return before the device has made them."""
    import torch

    group = state.groups[name]
    x = group.all_reduce(torch.ones(count, device=state.device))
    deadline_s = time.monotonic() + FAULT_TIMEOUT_S
    while "late_errors" in group.features and time.monotonic() < deadline_s:
        group.barrier()
    return x.sum().item()


def abort(state: RankState, name: str, reason: str) -> None:
    """Leave because of a failure."""
    state.groups[name].abort(reason)


def leave(state: RankState, name: str) -> None:
    """Leave in peace."""
    state.groups[name].close()
