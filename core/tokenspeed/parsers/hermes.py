"""Hermes, and Qwen2.5 and Qwen3 with it: <tool_call>{"name": ..., "arguments": {...}}</tool_call>.

Source: NousResearch/Hermes-Function-Calling, README, "Prompt Format for Function Calling"; the
chat templates of Qwen/Qwen2.5-*-Instruct and Qwen/Qwen3-*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.parsers.envelope import read_call_object
from tokenspeed.parsers.structure import CallShape
from tokenspeed.parsers.tool_format import ToolFormat

if TYPE_CHECKING:
    from tokenspeed.parsers.calls import Calls
    from tokenspeed.parsers.source import Source, Steps

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes(ToolFormat):
    """One object a pair of tags, of some models several; the closing tag may be missing."""

    opens = (OPEN,)
    closes = (CLOSE,)
    shape = CallShape(
        begin=f'{OPEN}\n{{"name": "NAME", "arguments": ',
        end=f"}}\n{CLOSE}",
        trigger=OPEN,
        separator="\n",
    )

    def read_calls(self, source: Source, calls: Calls, mark: str) -> Steps[None]:
        yield from read_call_object(source, calls)
        while (char := (yield from source.skip_space())) == "{":
            yield from read_call_object(source, calls)
        if char == "<":
            yield from source.choose(CLOSE)
