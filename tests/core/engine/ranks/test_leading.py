"""Rank 0's executor hands out no result of a step in which a group of ranks broke."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenspeed.engine.ranks.failure import RankFailure
from tokenspeed.engine.ranks.leading import LeadingExecutor
from tokenspeed.errors import EngineError
from tokenspeed.executor.connections import GroupConnections
from tokenspeed.placement.mesh import Degrees, build_mesh


class LateCommunicator:
    """Tells of a broken group only when it is asked."""

    def __init__(self, *, features: frozenset[str], reason: str) -> None:
        self.features = features
        self._reason = reason

    def check(self) -> None:
        """Raise the reason, if there is one."""
        if self._reason:
            raise EngineError(self._reason)


def connections(features: frozenset[str], reason: str) -> GroupConnections:
    def load(**_: object) -> Any:
        return LateCommunicator(features=features, reason=reason)

    made = GroupConnections(
        build_mesh(Degrees(tp=2)),
        0,
        load,
        rendezvous="r",
        device=None,
        timeout_s=1,  # type: ignore[arg-type]
    )
    made.over(("a",))
    return made


def leading(made: GroupConnections) -> LeadingExecutor:
    executor: Any = SimpleNamespace(collect=lambda: "the result")
    group: Any = SimpleNamespace(
        cause_of=lambda error: RankFailure(str(error)), is_in_step=False, wait_well=lambda _: None
    )
    return LeadingExecutor(executor, group, made.check)


def test_a_result_of_a_step_in_which_a_group_broke_is_not_given() -> None:
    executor = leading(connections(frozenset({"late_errors"}), "rank 1 died"))
    with pytest.raises(RankFailure, match="rank 1 died"):
        executor.collect()


def test_a_result_is_given_where_nothing_broke() -> None:
    assert leading(connections(frozenset({"late_errors"}), "")).collect() == "the result"


def test_who_raises_in_its_calls_is_not_asked() -> None:
    assert leading(connections(frozenset(), "not asked")).collect() == "the result"
