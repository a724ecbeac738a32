"""Whether a grammar has a finite text: one whose every rule leads to itself again has none.

Reads grammars as the library prints them: NAME ::= alternatives, of which each is a row of texts,
classes, rules, groups and repetitions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Expression = list["list[Item]"]
"""Alternatives, each a row of items."""
Item = str | Expression
"""A rule's name, or a group; what certainly has a text is left out."""

_RULE = re.compile(r"^([A-Za-z_][\w.-]*) ::= ", re.MULTILINE)
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\{(\d+)(?:, ?-?\d*)?\}|\(=|[A-Za-z_][\w.-]*|[()|*+?]'
)


def has_finite_text(grammar: str) -> bool:
    """Say whether some finite text belongs to the rule `root` of a printed grammar."""
    ends = [match.start() for match in _RULE.finditer(grammar)] + [len(grammar)]
    rules: dict[str, Expression] = {}
    for match, end in zip(_RULE.finditer(grammar), ends[1:], strict=True):
        body = grammar[match.end() : end]
        # Of the library's own forms each has a text: dispatch between tags, a regular expression.
        is_plain = not body.startswith(("TagDispatch(", "Regex(", "TokenTagDispatch("))
        rules[match[1]] = _Reader(body).alternatives() if is_plain else [[]]
    return "root" in _ending(rules)


def _ending(rules: Mapping[str, Expression]) -> set[str]:
    ending: set[str] = set()
    while True:
        new = {name for name, body in rules.items() if _ends(body, ending)} - ending
        if not new:
            return ending
        ending |= new


def _ends(body: Expression, ending: set[str]) -> bool:
    return any(
        all(item in ending if isinstance(item, str) else _ends(item, ending) for item in row)
        for row in body
    )


class _Reader:
    """Reads the body of one rule."""

    def __init__(self, body: str) -> None:
        self._tokens: Iterator[re.Match[str]] = _TOKEN.finditer(body)

    def alternatives(self) -> Expression:
        """Read up to the closing parenthesis or the end."""
        rows: Expression = [[]]
        for token in self._tokens:
            text = token[0]
            if text == ")":
                break
            if text == "|":
                rows.append([])
            elif text in ("*", "?") or (text[0] == "{" and token[1] == "0"):
                rows[-1][-1:] = [[[]]]
            elif text == "(=":
                self.alternatives()  # what must follow is said by the rules that follow
            elif text == "(":
                rows[-1].append(self.alternatives())
            elif text[0] in '"[':
                rows[-1].append([[]])
            elif text[0] not in "+{":
                rows[-1].append(text)
        return rows
