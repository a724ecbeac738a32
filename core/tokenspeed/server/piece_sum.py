"""The sum of all pieces of a choice, at a cost a piece that does not grow with the answer."""

from __future__ import annotations

from tokenspeed.server.pieces import Piece, join_pieces

_MAX_WAITING = 64


class PieceSum:
    """Adds up the pieces of one choice: many at a time, as each sum copies the whole text."""

    def __init__(self) -> None:
        self._sum = Piece()
        self._waiting: list[Piece] = []
        self.has_ended = False

    def add(self, piece: Piece) -> None:
        """Take the next piece."""
        self._waiting.append(piece)
        if piece.finish_reason is not None:
            self.has_ended = True
        if len(self._waiting) >= _MAX_WAITING:
            self.total()

    def total(self) -> Piece:
        """Return the sum of what came so far."""
        self._sum = join_pieces((self._sum, *self._waiting))
        self._waiting.clear()
        return self._sum
