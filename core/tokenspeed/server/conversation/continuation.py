"""What a chat template writes behind an earlier turn, found without understanding the template.

The turn's own tokens are known; of the template only what follows them is needed. So the turn is
rendered with a mark in place of what the model wrote, and the text behind the mark is taken:

    ... <|im_start|>assistant\\nMARK<|im_end|>\\n<|im_start|>user\\nNext<|im_end|>\\n...
                                   |------------------ rest ----------------------
    ... <tool_call>{"arguments": {"MARK": "MARK"}}</tool_call><|im_end|>\\n<|im_start|>...
                                              |- closing ---||-------- rest ---------

What closes a call was written by the model. It ends where a token that ends answers stands, and no
later than the template's own end of the turn when it is rendered last and alone. Where the rest
does not begin with a special token, or the mark is not found, there is no answer: nothing is
guessed.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tokenspeed.contracts.conversation import Conversation, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def marked(conversation: Conversation, index: int, mark: str) -> Conversation:
    """Return the conversation with the mark in a turn (`marked_turn`)."""
    messages = list(conversation.messages)
    messages[index] = marked_turn(messages[index], mark)
    return replace(conversation, messages=tuple(messages))


def alone(conversation: Conversation, index: int, mark: str) -> Conversation:
    """Return the marked turn behind a question, as the last of a short conversation."""
    turn = marked_turn(conversation.messages[index], mark)
    return replace(conversation, messages=(Message("user", ("x",)), turn), tools=())


def marked_turn(turn: Message, mark: str) -> Message:
    """Return a turn with the mark in place of what the model wrote last."""
    if not turn.tool_calls:
        return replace(turn, content=(mark,))
    arguments = json.dumps({mark: mark})
    calls = tuple(replace(call, arguments=arguments) for call in turn.tool_calls)
    return replace(turn, tool_calls=calls)


class RestFinder:
    """Cuts rendered texts behind the mark.

    Args:
        ends: texts of the tokens that end an answer.
        begins_special: says whether a text begins with a special token at which it may be cut
            before it is encoded.
    """

    def __init__(self, ends: Collection[str], begins_special: Callable[[str], bool]) -> None:
        self._begins_special = begins_special
        shown = sorted(filter(begins_special, ends), key=len, reverse=True)
        self._ends = re.compile("|".join(map(re.escape, shown)) or r"(?!)")

    def rest(
        self, text: str, mark: str, *, written: str, has_calls: bool, last: str = ""
    ) -> str | None:
        """Return the text from the end of the marked turn on; None: it cannot be told.

        Args:
            text: the conversation with the mark.
            written: how the turn's own tokens end, as text.
            has_calls: the mark stands in the arguments of calls.
            last: the turn alone; needed where something closes it before it ends.
        """
        behind = _behind(text, mark, is_repeated=has_calls)
        if behind is None:
            return None
        end = self._ends.search(behind)
        if not has_calls and self._begins_special(behind):
            # What closes an answer, such as the end of a channel, may have been written too.
            is_written = end is not None and written.endswith(behind[: end.start()])
            return behind[end.start() :] if end is not None and is_written else behind
        closing = _behind(last, mark, is_repeated=has_calls)
        if closing is None or end is None or end.start() > _shared(behind, closing):
            return None
        return behind[end.start() :]


def _behind(text: str, mark: str, *, is_repeated: bool) -> str | None:
    place = text.rfind(mark)
    if place < 0 or (not is_repeated and text.find(mark) != place):
        return None
    return text[place + len(mark) :]


def _shared(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
