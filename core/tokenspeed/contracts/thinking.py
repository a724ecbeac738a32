"""Budget of thinking: how many tokens of it an answer may have, as it crosses the wire."""

from __future__ import annotations

import msgspec


class ThinkingBudget(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many tokens an answer may think.

    Args:
        tokens: of the thinking at most, its marks not counted; then `close` is written.
        close: what ends the thinking; one token or more.
        ends: what the model may end it with; each one token or more.
        opens: what opens it. (): the prompt has opened it, or it is opened already.
        spaces: tokens that may stand before `opens` at the head of the answer.
        is_open: the answer begins inside the thinking.
        is_repeated: it may be opened again, anywhere in the answer.
    """

    tokens: int
    close: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...] = ()
    opens: tuple[int, ...] = ()
    spaces: tuple[int, ...] = ()
    is_open: bool = False
    is_repeated: bool = False
