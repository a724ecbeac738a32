"""The policies that ship: who is expected back when, and plain LRU.

`ReturnTimePolicy` keeps two numbers a session. When a session returns, the time it was away enters
two averages of its logarithm, a quick one and a slow one, and their weighted mean is how long it is
expected to stay away next time. The cache evicts whoever is expected back last; who is overdue
counts as staying away for two thirds of the time it has been away already. So sessions that return
often stay, sessions that have ended fade, and what belongs to no session is plain LRU. A request
that arrives while another of its session runs (a sub-agent, a second choice) is no return.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from tokenspeed.contracts.policy import Arrival, Keys

QUICK_WEIGHT = 0.5
SLOW_WEIGHT = 0.1
SHARE_OF_SLOW = 0.2
"""Chosen on an agentic trace, where the result hardly depends on them: see the ADR."""

PRIOR_S = 20.0
PRIOR_COUNT = 2
"""A new session is taken to stay away for 20 s, as if that had been seen twice."""

SMALLEST_GAP_S = 0.1
MAX_SESSIONS = 65_536


@dataclass(slots=True)
class _History:
    """One session: when it was last here, and averages of the logarithm of its gaps in seconds."""

    last_us: int
    quick: float
    slow: float
    num_gaps: int = 0
    num_running: int = 0


class ReturnTimePolicy:
    """The default: evicts whoever is expected back last. O(1) a request."""

    def __init__(self, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[int, _History] = OrderedDict()

    def keys(self, arrival: Arrival) -> Keys:
        """Learn how long the session was away, and return how long it will stay away."""
        if not arrival.session:
            return Keys()
        history = self._sessions.get(arrival.session)
        if history is None:
            history = self._enter(arrival)
        else:
            self._sessions.move_to_end(arrival.session)
            if not history.num_running:
                _learn(history, (arrival.now_us - history.last_us) * 1e-6)
        history.num_running += 1
        log_gap = history.quick + SHARE_OF_SLOW * (history.slow - history.quick)
        return Keys(gap_us=int(math.exp(log_gap) * 1e6))

    def turn_ended(self, session: int, now_us: int) -> None:
        """Count the session's absence from here."""
        history = self._sessions.get(session)
        if history is not None:
            history.num_running = max(0, history.num_running - 1)
            history.last_us = now_us

    def _enter(self, arrival: Arrival) -> _History:
        if len(self._sessions) >= self._max_sessions:
            self._sessions.popitem(last=False)
        history = _History(arrival.now_us, math.log(PRIOR_S), math.log(PRIOR_S))
        self._sessions[arrival.session] = history
        return history


def _learn(history: _History, gap_s: float) -> None:
    history.num_gaps += 1
    log_gap = math.log(max(gap_s, 0.0) + SMALLEST_GAP_S)
    first_weight = 1.0 / (history.num_gaps + PRIOR_COUNT)
    history.quick += max(QUICK_WEIGHT, first_weight) * (log_gap - history.quick)
    history.slow += max(SLOW_WEIGHT, first_weight) * (log_gap - history.slow)


class LruPolicy:
    """No expectation: the least recently used blocks go first, requests in order of arrival."""

    def keys(self, arrival: Arrival) -> Keys:
        """Return the neutral keys."""
        return Keys()

    def turn_ended(self, session: int, now_us: int) -> None:
        """Learn nothing."""
