"""The calls of one answer: names checked against the tools, ids given, text between calls trimmed.

Ids are made here, by the format: some clients and templates expect a form of their own.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenspeed.parsers.script import SPACES, EndOfAnswer, Stretch
from tokenspeed.parsers.source import BadCall

if TYPE_CHECKING:
    from tokenspeed.contracts.conversation import Tool
    from tokenspeed.contracts.parser import AnswerStart
    from tokenspeed.parsers.script import Told
    from tokenspeed.parsers.source import Source

_ALPHANUMERIC = string.ascii_letters + string.digits

MakeId = Callable[[str, int], str]


def random_id(name: str, index: int) -> str:
    """Return an id as OpenAI's clients know them."""
    return f"call_{secrets.token_hex(12)}"


def short_id(name: str, index: int) -> str:
    """Return nine letters and digits, which is what Mistral's templates take."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


class Calls:
    """The calls of one answer.

    Args:
        start: the tools, and which of them may be called.
        make_id: (name, index) -> id.
    """

    def __init__(self, source: Source, told: Told, start: AnswerStart, make_id: MakeId) -> None:
        self._source = source
        self._told = told
        self._tools = {tool.name: tool for tool in start.tools}
        self._choice = start.tool_choice
        self._make_id = make_id
        self._ids: set[str] = set()
        self._text = Stretch(told.content, tail=SPACES)
        self._has_text = False
        self.index = -1

    def text(self, text: str) -> None:
        """Tell text between calls; white space next to a call is the format's, not told.

        Texts that calls stood between are separate lines.
        """
        self._text.feed(text)

    def open(self, mark: str) -> None:
        """Say that a call opens: what is read from here on is shown if it is bad."""
        self._text.end()
        self._has_text = self._has_text or self._text.has_told
        before = "\n" if self._has_text else ""
        self._text = Stretch(self._told.content, head=SPACES, tail=SPACES, before=before)
        self._source.record(mark)

    def knows(self, name: str) -> bool:
        """Say whether a tool has this name."""
        return name in self._tools

    def begin(self, name: str, call_id: str = "") -> Tool:
        """Tell a call's name; return its tool.

        Args:
            call_id: as the model wrote it; taken if no other call of the answer has it.
        Raises:
            BadCall: it may not be called.
        """
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            raise BadCall(f"it calls {name!r}, which is not among the tools ({known})")
        if self._choice.mode == "named" and name != self._choice.name:
            raise BadCall(f"it calls {name!r}, and tool_choice demands {self._choice.name!r}")
        self.index += 1
        self._told.call(self.index, self._unique(call_id, name), name)
        return tool

    def arguments(self, text: str) -> None:
        """Tell the next piece of the arguments' JSON."""
        self._told.arguments(self.index, text)

    def end(self) -> None:
        """Say that the call is complete.

        Raises:
            EndOfAnswer: parallel calls are off: the rest of the answer is left out.
        """
        if not self._choice.parallel:
            raise EndOfAnswer

    def finish(self) -> None:
        """Say that the answer is over: its last text keeps its white space."""
        self._text.end(keeps_tail=True)

    def _unique(self, call_id: str, name: str) -> str:
        number = self.index
        while not call_id or call_id in self._ids:
            call_id = self._make_id(name, number)
            number += 1
        self._ids.add(call_id)
        return call_id
