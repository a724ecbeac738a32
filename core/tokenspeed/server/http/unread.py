"""What clients have not read: a budget for one answer, and one for all answers of a process.

An answer grows at the engine's pace, whatever its reader does. What waits for a reader is kept up
to a bound; a reader that falls further behind loses its answer, with a reason.
Thread: the event loop's only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tokenspeed.errors import CapacityError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from tokenspeed.server.pieces import Piece

MAX_ANSWER_BYTES = 16 << 20
"""A million tokens of plain text are about 4 MiB."""
MAX_BYTES = 256 << 20
PIECE_BYTES = 500
"""What a piece takes beside its texts."""
LOGPROB_BYTES = 200
TOP_LOGPROB_BYTES = 100


class Reader(Protocol):
    """An answer that waits to be read."""

    @property
    def num_unread_bytes(self) -> int:
        """Bytes that wait."""
        ...

    def cut(self, error: CapacityError) -> None:
        """Drop what waits; end with the error."""
        ...


class Unread:
    """Sums what waits; cuts off who is too far behind.

    Args:
        max_bytes: of all answers.
        max_answer_bytes: of one.
    """

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, max_answer_bytes: int = MAX_ANSWER_BYTES
    ) -> None:
        self.num_bytes = 0
        self.num_cut = 0
        self._max_bytes = max_bytes
        self._max_answer_bytes = max_answer_bytes
        self._readers: set[Reader] = set()

    def add(self, reader: Reader, num_bytes: int) -> None:
        """Count what has come for a reader, or went (a negative number)."""
        self.num_bytes += num_bytes
        if reader.num_unread_bytes:
            self._readers.add(reader)
        else:
            self._readers.discard(reader)
        if num_bytes <= 0:
            return
        if reader.num_unread_bytes > self._max_answer_bytes:
            self._cut(reader, self._max_answer_bytes, "one answer")
        elif self.num_bytes > self._max_bytes:
            farthest = max(self._readers, key=lambda item: item.num_unread_bytes)
            self._cut(farthest, self._max_bytes, "all answers together")

    def _cut(self, reader: Reader, limit: int, whose: str) -> None:
        self.num_cut += 1
        error = CapacityError(
            f"the client does not read: {reader.num_unread_bytes} bytes of its answer wait; of "
            f"{whose} at most {limit} may; the answer ends here; read faster, or ask for "
            "fewer tokens and logprobs"
        )
        LOGGER.warning("an answer is cut off: %s", error)
        reader.cut(error)


def bytes_of(piece: Piece) -> int:
    """Return about how many bytes of memory a piece takes."""
    num_bytes = PIECE_BYTES + len(piece.text) + len(piece.reasoning)
    for call in piece.tool_calls:
        num_bytes += PIECE_BYTES + len(call.arguments)
    for entry in (*piece.logprobs, *piece.prompt_logprobs):
        num_bytes += LOGPROB_BYTES + TOP_LOGPROB_BYTES * len(entry.top)
    return num_bytes
