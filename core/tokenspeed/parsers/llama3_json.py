"""Llama 3.1 to 3.3: {"name": ..., "parameters": {...}}, as the whole answer or after a mark.

Several stand behind each other, with or without a semicolon. Without the mark <|python_tag|> an
object is looked for at the head of an answer only; it is a call if it names a tool, or names
anything and goes on with parameters: other JSON is content.
Source: meta-llama/llama-models, models/llama3_1/prompt_format.md, "JSON based tool calling".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.parsers.envelope import ARGUMENT_KEYS, read_call_object, read_text
from tokenspeed.parsers.source import BadCall
from tokenspeed.parsers.structure import CallShape
from tokenspeed.parsers.tool_format import ToolFormat

if TYPE_CHECKING:
    from tokenspeed.parsers.calls import Calls
    from tokenspeed.parsers.source import Source, Steps

OPEN = "<|python_tag|>"
HEAD_KEYS = ("name", "type", "id")
"""What a call's object may begin with: any other key tells content at once."""


class Llama3Json(ToolFormat):
    """Objects behind each other."""

    opens = (OPEN,)
    shape = CallShape(
        begin='{"name": "NAME", "parameters": ',
        end="}",
        trigger='{"name": ',
        separator="; ",
        is_head=True,
    )

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        source.pin()
        is_call = yield from self._is_call(source, calls)
        source.rewind()
        if is_call:
            yield from source.skip_space()
            calls.open("")
            yield from self.read_calls(source, calls, "")
        yield from super().read(source, calls)

    def _is_call(self, source: Source, calls: Calls) -> Steps[bool]:
        """Say whether the answer begins with a call."""
        if (yield from source.skip_space()) != "{":
            return False
        try:
            return (yield from self._names_call(source, calls))
        except BadCall:
            return False

    def _names_call(self, source: Source, calls: Calls) -> Steps[bool]:
        is_named = False
        mark = yield from source.expect("{")
        while mark != "}":
            yield from source.skip_space()
            key = yield from read_text(source)
            yield from source.skip_space()
            yield from source.expect(":")
            if key in ARGUMENT_KEYS:
                return is_named
            if is_named or key not in HEAD_KEYS:
                return False
            yield from source.skip_space()
            value = yield from read_text(source)
            is_named = key == "name"
            if is_named and calls.knows(value):
                return True
            yield from source.skip_space()
            mark = yield from source.expect(",", "}")
        return False

    def read_calls(self, source: Source, calls: Calls, mark: str) -> Steps[None]:
        yield from read_call_object(source, calls)
        while (yield from source.skip_space()) in ("{", ";"):
            yield from source.choose(";")
            if (yield from source.skip_space()) != "{":
                return
            yield from read_call_object(source, calls)
