"""A recorded trace as a workload: its blocks become text, the same text for the same block."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tokenspeed.cli.agentic.workload import Part, Session, Turn, Workload

if TYPE_CHECKING:
    from tokenspeed.simulator import Conversation, Trace

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def workload_of(trace: Trace, *, chars_per_token: float, pause_scale: float) -> Workload:
    """Return the conversations of a trace as sessions.

    A prompt is one message of a user: the trace does not say who wrote which part. Its blocks are
    those of the trace, replies included, so that nothing depends on what the server answers.
    """
    maker = _Maker(trace.block_tokens, chars_per_token, pause_scale)
    sessions = [
        maker.session(f"s{number}", item) for number, item in enumerate(trace.conversations)
    ]
    return Workload(trace.name, tuple(sessions))


class _Maker:
    def __init__(self, block_tokens: int, chars_per_token: float, pause_scale: float) -> None:
        self._chars = max(8, round(block_tokens * chars_per_token))
        self._block_tokens = block_tokens
        self._chars_per_token = chars_per_token
        self._pause_scale = pause_scale

    def session(self, name: str, conversation: Conversation) -> Session:
        turns: list[Turn] = []
        for turn in conversation.turns:
            ids = [i for first, count in turn.runs for i in range(first, first + count)]
            rest = turn.prompt_tokens - len(ids) * self._block_tokens
            parts = [Part("user", self._block(number)) for number in ids]
            tail = self._text(f"{name}/{len(turns)}", max(1, round(rest * self._chars_per_token)))
            new = (*parts, Part("user", tail))
            pause_s = turn.pause_s * self._pause_scale
            turns.append(Turn(0, new, "", max(1, turn.output_tokens), pause_s))
        return Session(name, tuple(turns))

    def _block(self, number: int) -> str:
        return self._text(str(number), self._chars)

    @staticmethod
    def _text(seed: str, length: int) -> str:
        rng = random.Random(f"block/{seed}")
        text = ""
        while len(text) < length:
            text += "".join(rng.choices(_LETTERS, k=rng.randint(2, 8))) + " "
        return text[:length]
