"""The language of an answer with calls, for grammar engines: xgrammar's structural tags.

Strict tools' arguments obey their schemas, others' are any object.
Source: xgrammar 0.2.9, `structural_tag.py` (formats) and `builtin_structural_tag.py` (how models
write calls).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.grammar import GrammarSpec

if TYPE_CHECKING:
    from tokenspeed.contracts.conversation import Tool, ToolChoice

NAME = "NAME"
"""Stands for the tool's name in the texts of a `CallShape`."""
ANY_OBJECT: dict[str, Any] = {"type": "object"}
_SPACE = {"type": "regex", "pattern": r"[ \n]{0,4}"}


@dataclass(frozen=True, slots=True)
class CallShape:
    """How a format writes calls, as far as a grammar must know.

    Args:
        begin: text before the arguments, with NAME in it.
        end: text after them.
        trigger: text that can begin nothing but calls.
        separator: text between calls.
        number: text after a number behind `begin`, where ids are part of the format.
        around: texts before the first and after the last call.
        style: how arguments are written, in xgrammar's words.
        is_head: calls are the whole answer, or none of it.
        before: texts around a free text that may stand before calls that must be made.
    """

    begin: str
    end: str
    trigger: str
    separator: str = ""
    number: str = ""
    around: tuple[str, str] | None = None
    style: str = "json"
    is_head: bool = False
    before: tuple[str, str] | None = None

    def language(self, tools: tuple[Tool, ...], choice: ToolChoice) -> GrammarSpec:
        """Return the language of answers that may ("auto") or must call these tools."""
        called = [tool for tool in tools if choice.mode != "named" or tool.name == choice.name]
        tags = [self._tag(tool) for tool in called]
        stop = not choice.parallel
        calls: dict[str, Any] = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": stop,
        }
        if self.around is not None:
            calls = {"type": "tag", "content": calls, "begin": self.around[0]}
            calls["end"] = self.around[1]
            tags = [calls]
        if choice.mode != "auto":
            return _spec({"type": "sequence", "elements": [self._before(), calls]})
        if self.is_head:
            text = {"type": "any_text", "excludes": [self.trigger]}
            return _spec({"type": "or", "elements": [calls, text]})
        triggered = {"type": "triggered_tags", "triggers": [self.trigger], "tags": tags}
        return _spec({**triggered, "stop_after_first": stop})

    def _before(self) -> dict[str, Any]:
        if self.before is None:
            return _SPACE
        begin, end = self.before
        text = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": end}
        return {"type": "optional", "content": text}

    def _tag(self, tool: Tool) -> dict[str, Any]:
        schema = dict(tool.parameters) if tool.strict and tool.parameters else ANY_OBJECT
        content: dict[str, Any] = {
            "type": "json_schema",
            "json_schema": schema,
            "style": self.style,
        }
        if self.number:
            number = {"type": "regex", "pattern": "[0-9]+"}
            text = {"type": "const_string", "value": self.number}
            content = {"type": "sequence", "elements": [number, text, content]}
        begin = self.begin.replace(NAME, tool.name)
        return {"type": "tag", "begin": begin, "content": content, "end": self.end}


def _spec(form: dict[str, Any]) -> GrammarSpec:
    tag = {"type": "structural_tag", "format": form}
    return GrammarSpec("structural_tag", json.dumps(tag, ensure_ascii=False))
