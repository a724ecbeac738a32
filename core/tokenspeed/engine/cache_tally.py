"""Sums of what the prefix cache did: in all, by reason, by session, by root session, by tenant.

Each of the three divisions, with those no longer listed, adds up to the sums in all. A session's
root is the one that it descends from: an agent with all its sub-agents and compactions.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed.engine.messages import CacheReport

MAX_SESSIONS = 256
"""Sessions listed; the ones without a turn for the longest time are summed up together."""


@dataclass(slots=True)
class CacheSums:
    """Prompts, and their tokens by what became of them.

    Args:
        about: what else is shown beside the name.
    """

    prompts: int = 0
    cached: int = 0
    created: int = 0
    recomputed: int = 0
    about: dict[str, str] = field(default_factory=dict)

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


class SumsByName:
    """Sums for the latest names, and one for all others."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._names: OrderedDict[str, CacheSums] = OrderedDict()
        self._other = CacheSums()

    def of(self, name: str) -> CacheSums:
        """Return the sums of a name, which is then the latest."""
        if name in self._names:
            self._names.move_to_end(name)
        else:
            self._names[name] = CacheSums()
            if len(self._names) > MAX_SESSIONS:
                _, old = self._names.popitem(last=False)
                self._other.add(old.cached, old.created, old.recomputed, prompts=old.prompts)
        return self._names[name]

    def of_nobody(self) -> CacheSums:
        """Return the sums of all that is not listed."""
        return self._other

    def shown(self) -> list[dict[str, Any]]:
        """Return them, the latest first; at the end, under null, those of all others."""
        listed = [
            {self._kind: name, **sums.about, **sums.shown()} for name, sums in self._names.items()
        ]
        listed.reverse()
        if self._other.prompts:
            listed.append({self._kind: None, **self._other.shown()})
        return listed


class CacheTally:
    """Told of each prompt's report once. Thread: the engine's only."""

    def __init__(self) -> None:
        self.total = CacheSums()
        self.match_ends: Counter[str] = Counter()
        self.sessions = SumsByName("session")
        self.roots = SumsByName("root")
        self.tenants = SumsByName("tenant")

    def add(
        self,
        report: CacheReport,
        session: str,
        *,
        parent: str = "",
        root: str = "",
        tenant: str = "",
    ) -> None:
        """Count a prompt.

        Args:
            session: "" is none of the listed ones.
            parent: the session's; "": it has none.
            root: the session's; "": itself.
            tenant: "" is the nameless one, which is listed as such.
        """
        self.match_ends[report.reason] += 1
        of_session, of_root = self.sessions.of_nobody(), self.roots.of_nobody()
        if session:
            of_session, of_root = self.sessions.of(session), self.roots.of(root or session)
            of_session.about = {"parent": parent, "root": root or session}
        for sums in (self.total, self.tenants.of(tenant), of_session, of_root):
            sums.add(report.cached, report.created, report.recomputed)
