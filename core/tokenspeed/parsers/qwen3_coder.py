"""Qwen3-Coder and Qwen3.5: a call as tags, its values without their types.

<tool_call>
<function=NAME>
<parameter=KEY>
VALUE
</parameter>
</function>
</tool_call>

The outer tags may be missing. A tag that is implied inside a value must begin a line (`tagged.py`).
Source: the chat templates of Qwen/Qwen3-Coder-* and Qwen/Qwen3.5-*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.parsers.structure import CallShape
from tokenspeed.parsers.tagged import TaggedArguments, Tags, read_name
from tokenspeed.parsers.tool_format import ToolFormat

if TYPE_CHECKING:
    from tokenspeed.parsers.calls import Calls
    from tokenspeed.parsers.source import Source, Steps

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
ARGUMENTS = TaggedArguments(
    Tags(
        key=PARAMETER,
        key_end=">",
        value_end=PARAMETER_END,
        ends=(FUNCTION_END, CLOSE),
        newline=True,
    )
)


class Qwen3Coder(ToolFormat):
    """One function a pair of tags."""

    opens = (OPEN, FUNCTION)
    inner = (PARAMETER,)
    closes = (PARAMETER_END, FUNCTION_END, CLOSE)
    shape = CallShape(
        begin=f"{OPEN}\n{FUNCTION}NAME>\n",
        end=f"\n{FUNCTION_END}\n{CLOSE}",
        trigger=OPEN,
        separator="\n",
        style="qwen_xml",
    )

    def read_calls(self, source: Source, calls: Calls, mark: str) -> Steps[None]:
        if mark == OPEN:
            yield from source.skip_space()
            yield from source.expect(FUNCTION)
        tool = calls.begin((yield from read_name(source, ">")))
        end = yield from ARGUMENTS.read(source, calls, tool)
        calls.end()
        if end == FUNCTION_END and (yield from source.skip_space()) == "<":
            yield from source.choose(CLOSE)
