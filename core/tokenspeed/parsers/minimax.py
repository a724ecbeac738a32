"""MiniMax: M2 writes calls as tags, M1 as lines of JSON.

<minimax:tool_call>                     <tool_calls>
<invoke name="NAME">                    {"name": "NAME", "arguments": {...}}
<parameter name="KEY">VALUE</parameter> </tool_calls>
</invoke>
</minimax:tool_call>

Source: the chat templates of MiniMaxAI/MiniMax-M2 and MiniMaxAI/MiniMax-M1-80k, and the guides to
function calls beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.parsers.envelope import read_call_object
from tokenspeed.parsers.structure import CallShape
from tokenspeed.parsers.tagged import TaggedArguments, Tags, read_name
from tokenspeed.parsers.tool_format import ToolFormat

if TYPE_CHECKING:
    from tokenspeed.parsers.calls import Calls
    from tokenspeed.parsers.source import Source, Steps

OPEN, CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
INVOKE, INVOKE_END = '<invoke name="', "</invoke>"
PARAMETER, PARAMETER_END = '<parameter name="', "</parameter>"
ARGUMENTS = TaggedArguments(
    Tags(key=PARAMETER, key_end='">', value_end=PARAMETER_END, ends=(INVOKE_END, CLOSE))
)
OPEN_LINES, CLOSE_LINES = "<tool_calls>", "</tool_calls>"


class MiniMaxM2(ToolFormat):
    """Any number of invocations between one pair of tags."""

    opens = (OPEN,)
    inner = (INVOKE, PARAMETER)
    closes = (PARAMETER_END, INVOKE_END, CLOSE)
    shape = CallShape(
        begin=f'{INVOKE}NAME">\n',
        end=f"{INVOKE_END}\n",
        trigger=OPEN,
        around=(f"{OPEN}\n", CLOSE),
        style="minimax_xml",
    )

    def read_calls(self, source: Source, calls: Calls, mark: str) -> Steps[None]:
        yield from source.skip_space()
        yield from source.expect(INVOKE)
        while mark != CLOSE:
            tool = calls.begin((yield from read_name(source, '">')))
            mark = yield from ARGUMENTS.read(source, calls, tool)
            calls.end()
            if mark == INVOKE_END:
                yield from source.skip_space()
                mark = (yield from source.choose(INVOKE, CLOSE)) or CLOSE


class MiniMaxM1(ToolFormat):
    """One object a line between one pair of tags."""

    opens = (OPEN_LINES,)
    closes = (CLOSE_LINES,)
    shape = CallShape(
        begin='{"name": "NAME", "arguments": ',
        end="}\n",
        trigger=OPEN_LINES,
        around=(f"{OPEN_LINES}\n", CLOSE_LINES),
    )

    def read_calls(self, source: Source, calls: Calls, mark: str) -> Steps[None]:
        yield from read_call_object(source, calls)
        while (yield from source.skip_space()) == "{":
            yield from read_call_object(source, calls)
        yield from source.choose(CLOSE_LINES)
