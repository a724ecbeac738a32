"""The sessions that an engine has seen, and who descends from whom: to tell of them and end them.

Names are their owner's: two owners' sessions of one name are different ones. Bounded; the sessions
without a turn for the longest time are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.engine.requests import number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.engine.messages import Terms

MAX_SESSIONS = 4096
"""As many as the scheduler remembers the last turns of."""


@dataclass(frozen=True, slots=True)
class KnownSession:
    """A session and its family.

    Args:
        number: what the scheduler calls it.
        parent: session that started it, else the root where only that is known; "": it has none.
        root: session that the whole family descends from: itself, if it has no parent.
    """

    name: str
    number: int
    parent: str
    root: str


class SessionBook:
    """Sessions by owner and name. Thread: the engine's only."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], KnownSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def note(self, terms: Terms) -> None:
        """Note a turn; one without a session is nobody's."""
        if not terms.session:
            return
        key = terms.owner, terms.session
        root = terms.root or terms.session
        parent = terms.parent or (root if root != terms.session else "")
        number = number_of(terms.session, owner=terms.owner)
        self._known[key] = KnownSession(terms.session, number, parent, root)
        self._known.move_to_end(key)
        if len(self._known) > MAX_SESSIONS:
            self._known.popitem(last=False)

    def find(self, owner: str, name: str) -> KnownSession | None:
        """Return a session, None if it is not known."""
        return self._known.get((owner, name))

    def forget(self, owner: str, name: str) -> None:
        """Forget a session, if it is known."""
        self._known.pop((owner, name), None)

    def children(self, owner: str, name: str) -> list[KnownSession]:
        """Return the sessions that a session started, the latest last."""
        return [session for session in self._of(owner) if session.parent == name]

    def family(self, owner: str, name: str) -> list[KnownSession]:
        """Return a session and all that descend from it, children before their parents."""
        children: dict[str, list[KnownSession]] = {}
        for session in self._of(owner):
            # One whose parent is forgotten is found by its root still.
            is_known = (owner, session.parent) in self._known
            children.setdefault(session.parent if is_known else session.root, []).append(session)
        found: dict[str, KnownSession] = {}
        generation = [self._known[owner, name]]
        while generation:
            found |= {session.name: session for session in generation}
            generation = [
                child
                for session in generation
                for child in children.get(session.name, ())
                if child.name not in found
            ]
        return list(found.values())[::-1]

    def _of(self, owner: str) -> Iterator[KnownSession]:
        return (session for (other, _), session in self._known.items() if other == owner)
