"""Ids of tool calls: every call of every answer has one of its own."""

from __future__ import annotations

import secrets
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tokenspeed.contracts.parser import ToolCallDelta
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
        calls = tuple(map(self._filled, piece.tool_calls))
        if all(map(is_, calls, piece.tool_calls)):
            return piece
        return msgspec.structs.replace(piece, tool_calls=calls)

    def _filled(self, call: ToolCallDelta) -> ToolCallDelta:
        if call.index in self._opened:
            return replace(call, call_id="") if call.call_id else call
        self._opened.add(call.index)
        return call if call.call_id else replace(call, call_id=new_id("call"))
