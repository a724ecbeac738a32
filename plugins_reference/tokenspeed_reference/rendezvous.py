"""A group of ranks that are threads of one process: each brings an item, all get everybody's.

A round is complete when every rank has brought its item. A group that is broken stays broken: a
rank left, did not come in time, or made another call than the rest.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from tokenspeed_sdk import EngineError


@dataclass(slots=True)
class _Round:
    """One meeting: what each rank brought, and what it called."""

    calls: dict[int, str] = field(default_factory=dict)
    items: dict[int, Any] = field(default_factory=dict)


class Group:
    """The ranks' meeting place.

    Thread: any; one thread a rank.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._condition = threading.Condition()
        self._round = _Round()
        self._closed: set[int] = set()
        self._reason = ""

    def exchange(self, rank: int, call: str, item: Any, *, timeout_s: float) -> list[Any]:
        """Bring an item and return everybody's, in the order of the ranks.

        Args:
            call: what this rank calls, with everything that must be alike on all ranks.
        Raises:
            EngineError: the group is broken.
        """
        with self._condition:
            self.check()
            for other in self._closed:
                self._break(f"rank {other} has left before rank {rank} called {call}")
            current = self._round
            current.calls[rank], current.items[rank] = call, item
            if len(current.items) == self.size:
                self._complete(current)
            elif not self._condition.wait_for(
                lambda: self._reason or self._round is not current, timeout_s
            ):
                missing = sorted(set(range(self.size)) - set(current.items))
                self._break(
                    f"rank {', '.join(map(str, missing))} did not come to {call} within "
                    f"{timeout_s:g} s"
                )
            if self._round is current:
                self.check()
            return [current.items[member] for member in range(self.size)]

    def leave(self, rank: int, reason: str) -> None:
        """Take a rank out; with a reason, or while others wait for it, the group is broken."""
        with self._condition:
            self._closed.add(rank)
            waiting = self._round.calls
            if reason:
                self._break(f"rank {rank} failed: {reason}", raising=False)
            elif waiting:
                call = next(iter(waiting.values()))
                self._break(f"rank {rank} has left while others wait in {call}", raising=False)

    def is_empty(self) -> bool:
        """Say whether every rank has left."""
        with self._condition:
            return len(self._closed) == self.size

    def check(self) -> None:
        """Raise if the group is broken."""
        if self._reason:
            raise EngineError(
                f"communicator {self.name!r} of {self.size} ranks is broken: {self._reason}; all "
                "ranks must make the same calls and stay until the last; restart the engine"
            )

    def _complete(self, current: _Round) -> None:
        if len(set(current.calls.values())) > 1:
            calls = ", ".join(
                f"rank {rank}: {call}" for rank, call in sorted(current.calls.items())
            )
            self._break(f"the ranks' calls do not match ({calls})")
        self._round = _Round()
        self._condition.notify_all()

    def _break(self, reason: str, *, raising: bool = True) -> None:
        self._reason = self._reason or reason
        self._condition.notify_all()
        if raising:
            self.check()


_GROUPS: dict[str, Group] = {}
_LOCK = threading.Lock()
"""Guards _GROUPS: the ranks of a group find each other by the group's name."""


def join(name: str, rank: int, size: int) -> Group:
    """Return the group of this name, made by whoever comes first.

    Raises:
        ValueError: another rank said another size, or this rank is no rank of it.
    """
    if not 0 <= rank < size:
        raise ValueError(
            f"rank is {rank}, a group of {size} has 0 to {size - 1}; start such a rank"
        )
    with _LOCK:
        group = _GROUPS.setdefault(name, Group(name, size))
    if group.size != size:
        raise ValueError(
            f"communicator {name!r} has {group.size} ranks, rank {rank} says {size}; give every "
            "rank the same size, and every group a name of its own"
        )
    return group


def leave(group: Group, rank: int, reason: str) -> None:
    """Take a rank out of its group, and forget the group with its last rank."""
    group.leave(rank, reason)
    with _LOCK:
        if group.is_empty() and _GROUPS.get(group.name) is group:
            del _GROUPS[group.name]
