"""A made-up load of coding agents: shared system prompts, tools' answers, sub-agents, pauses.

Four kinds of agents, each with a system prompt of its own that all its sessions begin with. A
session reads files and tool answers, thinks, and comes back; some turns start sub-agents, half of
which go on from all that was said, half with a system prompt of their own. From a seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 100_000
SYSTEM_TOKENS = (3_000, 6_000, 9_000, 15_000)
CHILD_SYSTEM_TOKENS = 2_500


@dataclass(slots=True)
class Session:
    """One agent or sub-agent.

    Args:
        said: tokens so far: the next turn's prompt.
        turns_left: the next one included.
        draw: its own chance: what it does does not depend on when others do theirs.
        parent: name of the session that started it; "": it has none.
    """

    name: str
    said: NDArray[np.int32]
    turns_left: int
    draw: random.Random
    parent: str = ""
    num_children: int = 0


@dataclass(slots=True)
class Agents:
    """Draws sessions, what they read, and how long they pause.

    Args:
        num_sessions: that run side by side; one that ends makes room for another.
        total: sessions in all, sub-agents aside.
    """

    num_sessions: int = 64
    total: int = 192
    seed: int = 11
    _systems: list[NDArray[np.int32]] = field(init=False)
    _child_system: NDArray[np.int32] = field(init=False)
    _num_started: int = 0

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        self._systems = [_text(draw, size) for size in SYSTEM_TOKENS]
        self._child_system = _text(draw, CHILD_SYSTEM_TOKENS)

    def first(self) -> list[tuple[float, Session]]:
        """Return the first sessions, with the times when they begin."""
        sessions = [self._fresh() for _ in range(self.num_sessions)]
        return [(session.draw.uniform(0, 60), session) for session in sessions]

    def next_session(self) -> Session | None:
        """Return a session in the place of one that ended; None: all have begun."""
        return self._fresh() if self._num_started < self.total else None

    def output_tokens(self, session: Session) -> int:
        """Return how long the next answer is."""
        return session.draw.randrange(40, 250)

    def go_on(self, session: Session, output: NDArray[np.int32]) -> float | None:
        """Add an answer and a tool's to it; return the pause, None: it was the last turn."""
        session.turns_left -= 1
        if session.turns_left == 0:
            return None
        read = _text(session.draw, int(min(8_000, session.draw.lognormvariate(6.6, 1.0))))
        session.said = np.concatenate([session.said, output, read])
        return session.draw.lognormvariate(1.4, 1.1)

    def children(self, session: Session) -> list[Session]:
        """Return the sub-agents that a session starts now: mostly none."""
        if session.parent or session.draw.random() > 0.06:
            return []
        return [self._child(session) for _ in range(session.draw.randrange(1, 5))]

    def _fresh(self) -> Session:
        self._num_started += 1
        name = f"s{self._num_started}"
        draw = random.Random(f"{self.seed} {name}")
        said = [draw.choice(self._systems), _text(draw, draw.randrange(100, 4_000))]
        return Session(name, np.concatenate(said), draw.randrange(6, 28), draw)

    def _child(self, parent: Session) -> Session:
        parent.num_children += 1
        name = f"{parent.name}/{parent.num_children}"
        draw = random.Random(f"{self.seed} {name}")
        head = parent.said if draw.random() < 0.5 else self._child_system
        said = np.concatenate([head, _text(draw, draw.randrange(100, 800))])
        return Session(name, said, draw.randrange(2, 8), draw, parent.name)


def _text(draw: random.Random, num_tokens: int) -> NDArray[np.int32]:
    chance = np.random.default_rng(draw.getrandbits(32))
    return chance.integers(0, VOCABULARY, num_tokens).astype(np.int32)
