"""Which replica each conversation lives on, and how many tokens of conversations lie on each.

A conversation that has had no turn for long is no burden any more, and is forgotten at last.
Bounded. Thread: the router's only.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SESSIONS = 16384
REST_S = 600.0
"""A conversation without a turn for so long is not expected to come back soon."""


@dataclass(slots=True)
class _Home:
    replica: int
    num_tokens: int
    seen_s: float


class Homes:
    """Homes by the number of a session; the latest turn last."""

    def __init__(self, num_replicas: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._homes: OrderedDict[int, _Home] = OrderedDict()
        self._burdens = [0] * num_replicas
        self._clock = clock

    def __len__(self) -> int:
        return len(self._homes)

    def note(self, session: int, replica: int, num_tokens: int) -> None:
        """Note a turn; one without a session (0) leaves no trace."""
        if not session:
            return
        known = self._homes.pop(session, None)
        if known is not None:
            self._burdens[known.replica] -= known.num_tokens
        self._homes[session] = _Home(replica, num_tokens, self._clock())
        self._burdens[replica] += num_tokens
        self._drop_old()

    def find(self, session: int) -> int | None:
        """Return a session's replica, None if it is not known."""
        home = self._homes.get(session)
        return None if home is None else home.replica

    def burden(self, replica: int) -> int:
        """Return the tokens of the conversations that live there, by their last prompts."""
        return self._burdens[replica]

    def forget(self, replica: int) -> None:
        """Forget who lived on a replica."""
        gone = [name for name, home in self._homes.items() if home.replica == replica]
        for session in gone:
            del self._homes[session]
        self._burdens[replica] = 0

    def _drop_old(self) -> None:
        oldest_s = self._clock() - REST_S
        while self._homes:
            session, home = next(iter(self._homes.items()))
            if home.seen_s >= oldest_s and len(self._homes) <= MAX_SESSIONS:
                return
            del self._homes[session]
            self._burdens[home.replica] -= home.num_tokens
