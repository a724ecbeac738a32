"""Calls as Python: Llama 3.2 and 4 write a list of them, OLMo 3 lines between tags.

[get_weather(city="Paris", days=3), get_time()]       <function_calls>
                                                      get_weather(city="Paris", days=3)
                                                      </function_calls>

A list without a mark is looked for at the head of an answer only: "[" and a call of a tool; what
looks like a call of an unknown tool, with named arguments or none, is a bad call.
Source: meta-llama/llama-models, models/llama3_2/text_prompt_format.md ("Zero shot function
calling") and models/llama4/prompt_format.md; the chat template of allenai/Olmo-3-7B-Instruct.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tokenspeed.parsers.python_text import read_python
from tokenspeed.parsers.source import BadCall, UnfinishedCall
from tokenspeed.parsers.tool_format import ToolFormat

if TYPE_CHECKING:
    from tokenspeed.parsers.calls import Calls
    from tokenspeed.parsers.source import Source, Steps

START, END = "<|python_start|>", "<|python_end|>"
LINES, LINES_END = "<function_calls>", "</function_calls>"
_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
_IDENTIFIER = re.compile(r"[A-Za-z0-9_]+")


class Pythonic(ToolFormat):
    """A list of calls; arguments are literals and have names."""

    opens = (START, LINES)
    closes = (END, LINES_END)

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        source.pin()
        is_list = yield from self._is_list(source, calls)
        source.rewind()
        if is_list:
            yield from source.skip_space()
            yield from source.take(1)
            calls.open("[")
            yield from self._read_list(source, calls)
        yield from super().read(source, calls)

    def _is_list(self, source: Source, calls: Calls) -> Steps[bool]:
        """Say whether the answer begins with a list of calls."""
        if (yield from source.skip_space()) != "[":
            return False
        yield from source.take(1)
        yield from source.skip_space()
        parts: list[str] = []
        yield from source.run(_NAME, parts.append)
        yield from source.skip_space()
        if not parts or not (yield from source.choose("(")):
            return False
        if calls.knows("".join(parts)) or (yield from source.skip_space()) == ")":
            return True
        yield from source.run(_IDENTIFIER)
        return (yield from source.skip_space()) == "="

    def read_calls(self, source: Source, calls: Calls, mark: str) -> Steps[None]:
        yield from source.skip_space()
        if mark == LINES:
            yield from self._read_lines(source, calls)
            return
        yield from source.expect("[")
        yield from self._read_list(source, calls)
        yield from source.skip_space()
        yield from source.choose(END)

    def _read_list(self, source: Source, calls: Calls) -> Steps[None]:
        mark = ","
        while mark == ",":
            yield from self._read_call(source, calls)
            yield from source.skip_space()
            mark = yield from source.expect(",", "]")

    def _read_lines(self, source: Source, calls: Calls) -> Steps[None]:
        while True:
            yield from self._read_call(source, calls)
            char = yield from source.skip_space()
            if not char or (yield from source.choose(LINES_END)):
                return
            yield from source.choose(",")

    def _read_call(self, source: Source, calls: Calls) -> Steps[None]:
        yield from source.skip_space()
        name = yield from source.word(_NAME)
        yield from source.skip_space()
        yield from source.expect("(")
        calls.begin(name)
        calls.arguments("{")
        names: set[str] = set()
        while (yield from source.skip_space()) != ")":
            calls.arguments(", " if names else "")
            yield from self._read_argument(source, calls, names)
            if (yield from source.skip_space()) == ",":
                yield from source.take(1)
            elif (yield from source.char()) != ")":
                yield from source.expect(",", ")")
        yield from source.take(1)
        calls.arguments("}")
        calls.end()

    def _read_argument(self, source: Source, calls: Calls, names: set[str]) -> Steps[None]:
        name = yield from source.word(_IDENTIFIER)
        if (yield from source.skip_space()) != "=" or not name:
            if not (yield from source.char()):
                raise UnfinishedCall
            raise BadCall("an argument has no name, NAME=VALUE is needed")
        if name in names:
            raise BadCall(f"the argument {name!r} is given twice")
        names.add(name)
        yield from source.take(1)
        calls.arguments(f"{json.dumps(name)}: ")
        yield from read_python(source, calls.arguments)
