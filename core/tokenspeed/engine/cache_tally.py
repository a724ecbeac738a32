"""Sums of what the prefix cache did: in all, by reason, and by session.

The sums of all sessions, with those no longer listed, equal the sums in all.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed.engine.messages import CacheReport

MAX_SESSIONS = 256
"""Sessions listed; the ones without a turn for the longest time are summed up together."""


@dataclass(slots=True)
class CacheSums:
    """Prompts, and their tokens by what became of them."""

    prompts: int = 0
    cached: int = 0
    created: int = 0
    recomputed: int = 0

    def add(self, cached: int, created: int, recomputed: int, prompts: int = 1) -> None:
        """Count one prompt, or the sums of several."""
        self.prompts += prompts
        self.cached += cached
        self.created += created
        self.recomputed += recomputed

    def shown(self) -> dict[str, int]:
        """Return the sums by name."""
        return {
            "prompts": self.prompts,
            "cached_tokens": self.cached,
            "created_tokens": self.created,
            "recomputed_tokens": self.recomputed,
        }


class CacheTally:
    """Told of each prompt's report once. Thread: the engine's only."""

    def __init__(self) -> None:
        self.total = CacheSums()
        self.match_ends: Counter[str] = Counter()
        self._sessions: OrderedDict[str, CacheSums] = OrderedDict()
        self._other = CacheSums()

    def add(self, report: CacheReport, session: str) -> None:
        """Count a prompt; `session` "" is none of the listed ones."""
        self.match_ends[report.reason] += 1
        for sums in (self.total, self._sums_of(session)):
            sums.add(report.cached, report.created, report.recomputed)

    def sessions(self) -> list[dict[str, Any]]:
        """Return the sums of sessions, the latest first; at the end those of all others."""
        listed = [{"session": name, **sums.shown()} for name, sums in self._sessions.items()]
        listed.reverse()
        if self._other.prompts:
            listed.append({"session": None, **self._other.shown()})
        return listed

    def _sums_of(self, session: str) -> CacheSums:
        if not session:
            return self._other
        if session in self._sessions:
            self._sessions.move_to_end(session)
        else:
            self._sessions[session] = CacheSums()
            if len(self._sessions) > MAX_SESSIONS:
                _, oldest = self._sessions.popitem(last=False)
                self._other.add(
                    oldest.cached, oldest.created, oldest.recomputed, prompts=oldest.prompts
                )
        return self._sessions[session]
