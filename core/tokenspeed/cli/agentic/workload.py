"""What the agents of a benchmark send: sessions of turns, byte for byte the same for a seed.

A prompt is a list of parts; a turn adds parts to the history of its session, so that prefixes are
shared by construction and the best possible hit rate is known before anything is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["turn", "sub-agent", "compaction"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a prompt; parts of one role in a row are one message."""

    role: Literal["system", "user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    Args:
        history: how many parts of the session's history stand before its own; the rest is dropped,
            as a compaction does.
        new: parts that it adds.
        reply: what the script says the model answered; later turns hold it.
        output_tokens: to be generated.
        pause_s: of the client before it: a tool runs, or a person thinks.
        kind: of a sub-agent's turns the history is the sub-agent's own.
    """

    history: int
    new: tuple[Part, ...]
    reply: str
    output_tokens: int
    pause_s: float
    kind: Kind = "turn"


@dataclass(frozen=True, slots=True)
class Session:
    """Turns one after another; a sub-agent is a session that its parent waits for.

    Args:
        children: after turn i of this session, these sessions run, at the same time.
    """

    name: str
    turns: tuple[Turn, ...]
    children: dict[int, tuple[Session, ...]] = field(default_factory=dict)

    @property
    def num_requests(self) -> int:
        """Count the requests, those of the children included."""
        own = len(self.turns)
        return own + sum(child.num_requests for each in self.children.values() for child in each)


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions in the order in which they start.

    Args:
        name: says where it comes from.
        scale: of all sizes against what was published or recorded.
    """

    name: str
    sessions: tuple[Session, ...]
    scale: float = 1.0

    @property
    def num_requests(self) -> int:
        """Count the requests of all sessions."""
        return sum(session.num_requests for session in self.sessions)

    def first(self, count: int) -> Workload:
        """Return the workload of the first sessions alone."""
        return replace(self, sessions=self.sessions[:count])


class History:
    """The parts of a session so far, while its turns are played."""

    def __init__(self) -> None:
        self._parts: list[Part] = []

    def prompt(self, turn: Turn) -> tuple[Part, ...]:
        """Return the prompt of the next turn."""
        self._parts = [*self._parts[: turn.history], *turn.new]
        return tuple(self._parts)

    def answered(self, reply: str) -> None:
        """Add the answer to the prompt that was returned last."""
        self._parts.append(Part("assistant", reply))


def messages_of(prompt: tuple[Part, ...]) -> list[dict[str, str]]:
    """Return a prompt as chat messages."""
    messages: list[dict[str, str]] = []
    for part in prompt:
        if messages and messages[-1]["role"] == part.role:
            messages[-1]["content"] += part.text
        else:
            messages.append({"role": part.role, "content": part.text})
    return messages
