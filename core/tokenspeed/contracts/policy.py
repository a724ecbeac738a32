"""Policy slot: the keys by which the control plane orders requests and evicts their cache.

A policy is built once a start and returns numbers; the scheduler (C++) orders by them and calls
nothing back. It is asked at submit and told when a turn ended, in the engine's thread, a few
microseconds each: plain Python, no I/O, no clock but `now_us`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Arrival(NamedTuple):
    """One request as it arrives.

    Args:
        session: number of its conversation; 0: it belongs to none.
        tenant: number of the tenant it is counted for.
        priority: higher goes first.
        prompt_tokens: length of its prompt.
        now_us: time of the arrival, the engine's clock.
    """

    session: int
    tenant: int
    priority: int
    prompt_tokens: int
    now_us: int


class Keys(NamedTuple):
    """What the scheduler orders by.

    Args:
        gap_us: how long the session is expected to stay away after this turn; 0: nobody knows. Of
            cached blocks that nobody uses, those of the session that is expected back last go
            first; with 0 everywhere the least recently used do.
        queue_key: smaller goes first among waiting requests of one class.
        victim_key: larger is retracted first within a priority.
    """

    gap_us: int = 0
    queue_key: int = 0
    victim_key: int = 0


class Policy(Protocol):
    """Gives keys. What it raises ends that one request."""

    def keys(self, arrival: Arrival) -> Keys:
        """Return the keys of a request that arrives."""
        ...

    def turn_ended(self, session: int, now_us: int) -> None:
        """Take note that a request of this session ended, for whatever reason."""
        ...
