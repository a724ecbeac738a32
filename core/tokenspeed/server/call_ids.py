"""Ids of tool calls: every call of every answer has one of its own."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tokenspeed.server.pieces import Piece


def new_id(prefix: str) -> str:
    """Return an id that no other answer has: clients merge turns whose ids are equal."""
    return f"{prefix}_{secrets.token_hex(12)}"


class CallIds:
    """Gives an id to each call of one choice whose format has none."""

    def __init__(self) -> None:
        self._opened: set[int] = set()

    def filled(self, piece: Piece) -> Piece:
        """Return a piece whose calls have ids, each with its first delta only."""
        if not piece.tool_calls:
            return piece
        calls = []
        for call in piece.tool_calls:
            if call.index in self._opened:
                calls.append(replace(call, call_id=""))
                continue
            self._opened.add(call.index)
            calls.append(replace(call, call_id=call.call_id or new_id("call")))
        return msgspec.structs.replace(piece, tool_calls=tuple(calls))
