"""GLM-4.5, 4.6 and 4.7: a call as keys and values, without their types.

<tool_call>NAME
<arg_key>KEY</arg_key>
<arg_value>VALUE</arg_value>
</tool_call>

4.7 writes no newlines between them.
Source: the chat templates of zai-org/GLM-4.5, GLM-4.6 and GLM-4.7.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokenspeed.parsers.structure import CallShape
from tokenspeed.parsers.tagged import TaggedArguments, Tags
from tokenspeed.parsers.tool_format import ToolFormat

if TYPE_CHECKING:
    from tokenspeed.parsers.calls import Calls
    from tokenspeed.parsers.source import Source, Steps

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
ARGUMENTS = TaggedArguments(
    Tags(key=KEY, key_end=KEY_END, value=VALUE, value_end=VALUE_END, ends=(CLOSE,))
)
_NAME = re.compile(r"[^<\r\n]+")


class Glm(ToolFormat):
    """One call a pair of tags."""

    opens = (OPEN,)
    inner = (KEY, VALUE)
    closes = (KEY_END, VALUE_END, CLOSE)
    shape = CallShape(
        begin=f"{OPEN}NAME\n", end=CLOSE, trigger=OPEN, separator="\n", style="glm_xml"
    )

    def read_calls(self, source: Source, calls: Calls, mark: str) -> Steps[None]:
        yield from source.skip_space()
        tool = calls.begin((yield from source.word(_NAME)).strip())
        yield from ARGUMENTS.read(source, calls, tool)
        calls.end()
