"""Kimi-K2: calls that carry their own ids, functions.NAME:NUMBER.

<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}
<|tool_call_end|><|tool_calls_section_end|>

The id is the model's own: its template shows it again, and the model counts on. Closing marks may
be missing, and the mark of the section too.
Source: moonshotai/Kimi-K2-Instruct, docs/tool_call_guidance.md and its chat template.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokenspeed.parsers.json_text import read_arguments
from tokenspeed.parsers.source import BadCall
from tokenspeed.parsers.structure import CallShape
from tokenspeed.parsers.tool_format import SectionFormat

if TYPE_CHECKING:
    from tokenspeed.parsers.calls import Calls, MakeId
    from tokenspeed.parsers.source import Source, Steps

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"[^<{\s]+")
_PARTS = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::(?P<number>[0-9]+))?")


def numbered_id(name: str, number: int) -> str:
    """Return an id as the model writes them."""
    return f"functions.{name}:{number}"


class KimiK2(SectionFormat):
    """Any number of calls in a section."""

    opens = (SECTION, CALL)
    inner = (ARGUMENTS,)
    closes = (CALL_END, SECTION_END)
    shape = CallShape(
        begin=f"{CALL}functions.NAME:",
        number=ARGUMENTS,
        end=CALL_END,
        trigger=SECTION,
        around=(SECTION, SECTION_END),
    )

    def __init__(self, make_id: MakeId = numbered_id) -> None:
        super().__init__(make_id)

    def read_call(self, source: Source, calls: Calls) -> Steps[None]:
        yield from source.skip_space()
        call_id = yield from source.word(_ID)
        yield from source.skip_space()
        yield from source.expect(ARGUMENTS)
        found = _PARTS.fullmatch(call_id)
        if found is None:
            raise BadCall("the call has no id, functions.NAME:NUMBER is needed")
        calls.begin(found["name"], call_id if found["number"] else "")
        yield from read_arguments(source, calls.arguments)
