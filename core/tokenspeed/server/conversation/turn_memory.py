"""The tokens of finished chat turns, so that a turn that comes back is continued, not written anew.

    key      digest(what was said before it, what the turn means)
    tokens   the prompt that it answered, and what was sampled, without the token that ended it

    turn 1:  [system, tools, user | answer]
    turn 2:                               [tool's answer | answer]       one node each: only
    turn 3:                                                   [...]      what its parent lacks

Bounded in bytes: the least recently used turn without a later one goes first. One an API process;
thread: the event loop's only. Looking up costs a digest a message.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenspeed.errors import EngineError, told
from tokenspeed.server.conversation.fingerprint import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.server.conversation.fingerprint import MessagePrint


@contextmanager
def memory_faults() -> Iterator[None]:
    """Look something up, or keep it: what goes wrong ends the request that asked.

    Raises:
        EngineError: in place of any exception.
    """
    try:
        yield
    except Exception as error:
        raise EngineError(
            f"the memory of turns failed for this request: {told(error)}; other requests go on; "
            "send it again, and report it; --turn-memory-mib 0 serves without the memory"
        ) from error


TURN_BYTES = 700
"""What a node costs beside its tokens."""


@dataclass(slots=True, eq=False)
class Turn:
    """A remembered turn.

    Args:
        ids: int32 bytes, from the end of its parent's tokens.
        num_tokens: of the whole chain up to its end.
        reasoning: digest, as in `MessagePrint`.
        reuse_points: of its prompt.
        before: what was said before it.
    """

    key: bytes
    before: bytes
    reasoning: bytes
    parent: Turn | None
    ids: bytes
    num_tokens: int
    reuse_points: tuple[int, ...]
    num_children: int = field(default=0)

    @property
    def num_bytes(self) -> int:
        """Host memory that it takes."""
        return len(self.ids) + TURN_BYTES

    def chain(self) -> Iterator[Turn]:
        """Yield it and the turns before it, the latest first."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent

    def token_ids(self) -> array[int]:
        """Return the tokens of the whole chain."""
        ids = array("i")
        ids.frombytes(b"".join([turn.ids for turn in self.chain()][::-1]))
        return ids


@dataclass(frozen=True, slots=True)
class Place:
    """Where a conversation stands in the memory.

    Args:
        said: digest of all of it.
        turn: the last of its turns that is remembered.
        index: of that turn among the messages; -1: none.
        refused: why its newest turn is not remembered: "unknown" (made elsewhere, or forgotten),
            "edited" (another one is, in its place), "reasoning" (it came back with another);
            "" when it is, and when the conversation has no turn of the model yet.
    """

    said: bytes
    turn: Turn | None = None
    index: int = -1
    refused: str = ""


class TurnMemory:
    """Remembers turns within a budget.

    Args:
        max_bytes: of tokens and nodes.
        note: told of the number of turns and their bytes after each change.
    """

    def __init__(
        self, max_bytes: int, note: Callable[[int, int], None] = lambda turns, size: None
    ) -> None:
        self._max_bytes = max_bytes
        self._note = note
        self._turns: dict[bytes, Turn] = {}
        self._follows: Counter[bytes] = Counter()
        # Least recently used first. A turn is always moved before its parent, so the first one
        # has no children.
        self._lru: OrderedDict[Turn, None] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._lru)

    def find(self, scope: bytes, prints: Sequence[MessagePrint]) -> Place:
        """Walk a conversation; remembered turns count where their meaning is the same."""
        said, place = scope, Place(scope)
        for index, one in enumerate(prints):
            before, said = said, digest(said, one.body)
            if not one.is_assistant:
                continue
            turn = self._turns.get(said)
            is_same = turn is not None and one.reasoning in (b"", turn.reasoning)
            if turn is not None and is_same:
                said = digest(said, turn.reasoning)
                place = Place(said, turn, index)
            else:
                refused = "reasoning" if turn is not None else self._why(before)
                said = digest(said, one.reasoning)
                place = Place(said, place.turn, place.index, refused)
        if place.turn is not None:
            self._touch(place.turn)
        return Place(said, place.turn, place.index, place.refused)

    def remember(
        self,
        place: Place,
        prompt: array[int],
        output: Sequence[int],
        answer: MessagePrint,
        *,
        continues: bool,
        reuse_points: tuple[int, ...] = (),
    ) -> None:
        """Keep a finished turn.

        Args:
            place: of the conversation that it answered.
            output: what was sampled, without the token that ended it.
            answer: the turn as the client was told.
            continues: the prompt began with the tokens of `place.turn`.
        """
        parent = place.turn if continues and place.turn in self._lru else None
        ids = array("i", prompt[parent.num_tokens :] if parent else prompt)
        ids.extend(output)
        turn = Turn(
            key=digest(place.said, answer.body),
            before=place.said,
            reasoning=answer.reasoning,
            parent=parent,
            ids=ids.tobytes(),
            num_tokens=len(prompt) + len(output),
            reuse_points=reuse_points,
        )
        if turn.num_bytes <= self._max_bytes:
            self._add(turn)

    def _why(self, before: bytes) -> str:
        return "edited" if before in self._follows else "unknown"

    def _add(self, turn: Turn) -> None:
        old = self._turns.get(turn.key)
        if old is not None and not old.num_children:
            self._forget(old)
        self._turns[turn.key] = turn
        self._follows[turn.before] += 1
        self.num_bytes += turn.num_bytes
        if turn.parent is not None:
            turn.parent.num_children += 1
        self._touch(turn)
        while self.num_bytes > self._max_bytes:
            self._forget(next(iter(self._lru)))
        self._note(len(self._lru), self.num_bytes)

    def _touch(self, turn: Turn) -> None:
        for one in turn.chain():
            self._lru[one] = None
            self._lru.move_to_end(one)

    def _forget(self, turn: Turn) -> None:
        assert not turn.num_children, "later turns hold only what this one lacks"
        del self._lru[turn]
        self.num_bytes -= turn.num_bytes
        self._follows[turn.before] -= 1
        if not self._follows[turn.before]:
            del self._follows[turn.before]
        if turn.parent is not None:
            turn.parent.num_children -= 1
        # Another turn of the same meaning may have taken its key.
        if self._turns.get(turn.key) is turn:
            del self._turns[turn.key]
