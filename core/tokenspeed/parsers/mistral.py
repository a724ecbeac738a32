"""Mistral: calls after the mark [TOOL_CALLS], in the forms of all its tokenizers.

up to v7:  [TOOL_CALLS][{"name": "NAME", "arguments": {...}}, ...]
v11:       [TOOL_CALLS]NAME[CALL_ID]123456789[ARGS]{...}     the mark before each call
v13:       [TOOL_CALLS]NAME[ARGS]{...}
and NAME{...}, as served without the inner mark. Ids are nine letters and digits, or the model's.
Source: mistralai/mistral-common, docs/usage/tools.md and tokens/tokenizers/instruct.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from tokenspeed.parsers.calls import short_id
from tokenspeed.parsers.envelope import read_call_object
from tokenspeed.parsers.json_text import read_arguments
from tokenspeed.parsers.structure import CallShape
from tokenspeed.parsers.tool_format import ToolFormat

if TYPE_CHECKING:
    from tokenspeed.parsers.calls import Calls, MakeId
    from tokenspeed.parsers.source import Source, Steps

OPEN, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[^\[{\s]+")


class Mistral(ToolFormat):
    """A list of objects, or a name and its arguments; a grammar writes the list."""

    opens = (OPEN,)
    inner = (CALL_ID, ARGUMENTS)
    shape: ClassVar[CallShape | None] = CallShape(
        begin='{"name": "NAME", "arguments": ',
        end="}",
        trigger=OPEN,
        separator=", ",
        around=(f"{OPEN} [", "]"),
    )

    def __init__(self, make_id: MakeId = short_id) -> None:
        super().__init__(make_id)

    def read_calls(self, source: Source, calls: Calls, mark: str) -> Steps[None]:
        char = yield from source.skip_space()
        if char == "[":
            yield from self._read_list(source, calls)
        elif char == "{":
            yield from read_call_object(source, calls)
        else:
            yield from self._read_named(source, calls)

    def _read_list(self, source: Source, calls: Calls) -> Steps[None]:
        yield from source.take(1)
        mark = "," if (yield from source.skip_space()) != "]" else ""
        while mark == ",":
            yield from read_call_object(source, calls)
            yield from source.skip_space()
            mark = yield from source.expect(",", "]")
        if not mark:
            yield from source.take(1)

    def _read_named(self, source: Source, calls: Calls) -> Steps[None]:
        name = yield from source.word(_NAME)
        call_id = ""
        if (yield from source.choose(CALL_ID)):
            call_id = yield from source.word(_NAME)
        yield from source.choose(ARGUMENTS)
        if (yield from source.skip_space()) != "{":
            yield from source.expect(ARGUMENTS, "{")
        calls.begin(name, call_id)
        yield from read_arguments(source, calls.arguments)
        calls.end()


class MistralNamed(Mistral):
    """The same; a grammar writes names and arguments, as tokenizers from v13 on do."""

    shape = CallShape(begin=f"{OPEN}NAME{ARGUMENTS}", end="", trigger=OPEN)
