"""An answer as a row of parts - thinking, text, calls - for the APIs that number them.

Pieces come in, changes of parts come out: a part is opened, grows, and is closed before the next
one opens. Knows no API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.contracts.parser import ToolCallDelta
    from tokenspeed.server.pieces import Piece

PartKind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class Part:
    """One part of an answer.

    Args:
        number: its place in the answer.
        text: what it holds so far; of a call, the JSON text of its arguments.
        call_id, name: of a call.
    """

    kind: PartKind
    number: int
    text: str = ""
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a part.

    Args:
        text: of "grow": what was added.
    """

    what: Literal["open", "grow", "close"]
    part: Part
    text: str = ""


class PartStream:
    """The parts of one choice."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._open: Part | None = None
        self._call_index = -1

    def push(self, piece: Piece) -> Iterator[Change]:
        """Return what a piece changes.

        A piece may be a sum: what it says of a call that is open already came before its texts.
        """
        calls = list(piece.tool_calls)
        if calls and self._is_open_call(calls[0]):
            yield from self._call(calls.pop(0))
        yield from self._text("reasoning", piece.reasoning)
        yield from self._text("text", piece.text)
        for call in calls:
            yield from self._call(call)

    def finish(self) -> Iterator[Change]:
        """Close what is open: the answer has ended."""
        if self._open is not None:
            yield Change("close", self._open)
            self._open = None

    def _is_open_call(self, call: ToolCallDelta) -> bool:
        is_call = self._open is not None and self._open.kind == "call"
        return is_call and call.index == self._call_index

    def _text(self, kind: PartKind, text: str) -> Iterator[Change]:
        if not text:
            return
        if self._open is None or self._open.kind != kind:
            yield from self._start(Part(kind, len(self.parts)))
        yield from self._grow(text)

    def _call(self, call: ToolCallDelta) -> Iterator[Change]:
        if not self._is_open_call(call):
            part = Part("call", len(self.parts), call_id=call.call_id, name=call.name)
            yield from self._start(part)
            self._call_index = call.index
        yield from self._grow(call.arguments)

    def _start(self, part: Part) -> Iterator[Change]:
        yield from self.finish()
        self.parts.append(part)
        self._open = part
        yield Change("open", part)

    def _grow(self, text: str) -> Iterator[Change]:
        assert self._open is not None
        self._open.text += text
        if text:
            yield Change("grow", self._open, text)


def parts_of(piece: Piece) -> list[Part]:
    """Return the parts of a whole answer."""
    stream = PartStream()
    for _ in stream.push(piece):
        pass
    return stream.parts
