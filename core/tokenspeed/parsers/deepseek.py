"""DeepSeek: V3 and R1 write a call's arguments in a block of code, V3.1 as they are.

<|calls begin|><|call begin|>function<|sep|>NAME      <|calls begin|><|call begin|>NAME<|sep|>{...}
```json                                               <|call end|><|calls end|>
{...}
```<|call end|><|calls end|>

(the marks as below, with full-width bars). Closing marks may be missing.
Source: the chat templates of deepseek-ai/DeepSeek-V3-0324, DeepSeek-R1-0528 and DeepSeek-V3.1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokenspeed.parsers.json_text import read_arguments
from tokenspeed.parsers.structure import CallShape
from tokenspeed.parsers.tool_format import SectionFormat

if TYPE_CHECKING:
    from tokenspeed.parsers.calls import Calls
    from tokenspeed.parsers.source import Source, Steps

CALLS, CALLS_END = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
)
CALL, CALL_END = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
CODE, CODE_END = "```json", "```"
_NAME = re.compile(r"[^<`{\s]+")


class DeepSeekV31(SectionFormat):
    """A name and its arguments; any number of them between one pair of marks."""

    opens = (CALLS, CALL)
    inner = (SEPARATOR,)
    closes = (CALL_END, CALLS_END)
    shape = CallShape(
        begin=f"{CALL}NAME{SEPARATOR}", end=CALL_END, trigger=CALLS, around=(CALLS, CALLS_END)
    )

    def read_call(self, source: Source, calls: Calls) -> Steps[None]:
        yield from source.skip_space()
        name = yield from source.word(_NAME)
        yield from source.expect(SEPARATOR)
        calls.begin(name)
        yield from read_arguments(source, calls.arguments)


class DeepSeekV3(DeepSeekV31):
    """The same with the type before the name, and a block of code around the arguments."""

    shape = CallShape(
        begin=f"{CALL}function{SEPARATOR}NAME\n{CODE}\n",
        end=f"\n{CODE_END}{CALL_END}",
        trigger=CALLS,
        separator="\n",
        around=(CALLS, CALLS_END),
    )

    def read_call(self, source: Source, calls: Calls) -> Steps[None]:
        yield from source.skip_space()
        yield from source.expect("function")
        yield from source.expect(SEPARATOR)
        calls.begin((yield from source.word(_NAME)))
        yield from source.skip_space()
        yield from source.choose(CODE)
        yield from read_arguments(source, calls.arguments)
        yield from source.skip_space()
        yield from source.choose(CODE_END)
