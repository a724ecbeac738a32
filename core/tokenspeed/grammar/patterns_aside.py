"""Keeps patterns of schemas away from the library, whose own reading of them lets too much through.

It builds automata of patterns whose optional ends, merged with those of other alternatives, accept
texts that no alternative has. So it sees a mark in each pattern's place, and the grammar that it
makes is given the pattern's rule where the mark came out.
"""

from __future__ import annotations

import re
from typing import Any

from tokenspeed.grammar.pattern_rules import rule_of

_MARK = "^tokenspeed-pattern-{}$"
_FOUND = re.compile(r'Regex\("\^tokenspeed-pattern-(\d+)\$"(?:, \w+=\w+)*\)')


class Patterns:
    """The patterns of one grammar; true when there are any."""

    def __init__(self) -> None:
        self._rules: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._rules)

    def set_aside(self, schema: Any) -> Any:
        """Return a prepared schema with a mark for each pattern."""
        if isinstance(schema, list):
            return [self.set_aside(item) for item in schema]
        if not isinstance(schema, dict) or "enum" in schema:
            return schema
        done: dict[str, Any] = {}
        for name, value in schema.items():
            if name == "pattern":
                done[name] = self._mark(value)
            elif name == "patternProperties":
                done[name] = {self._mark(key): self.set_aside(item) for key, item in value.items()}
            elif name in ("properties", "$defs"):
                done[name] = {key: self.set_aside(item) for key, item in value.items()}
            else:
                done[name] = self.set_aside(value)
        return done

    def put_back(self, grammar: str) -> str:
        """Return a grammar's text with the rules in the places of their marks."""
        text, num_found = _FOUND.subn(lambda found: self._rules[int(found[1])], grammar)
        assert num_found >= len(set(self._rules)), "a mark has not come out as it went in"
        return text

    def _mark(self, pattern: str) -> str:
        self._rules.append(rule_of(pattern, ()))
        return _MARK.format(len(self._rules) - 1)
