"""The Jinja environment of chat templates: what transformers offers, bounded in work and size.

A template is code that came with a model, fed with data from clients. Jinja's sandbox keeps it from
the machine; this one also ends it: every loop turn and every call counts against a budget of
processor time, and every text that grows (concatenation, captured blocks, sums, products) against
a length.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARS = 1 << 26
"""Longest text a template may build."""
MAX_CPU_S = 5.0
"""Longest time of its thread that one rendering may take."""
_TICKS_A_LOOK = 16
_MAX_POWER_BITS = 4096


class TemplateLimitError(jinja2.TemplateError):
    """A template ran for too long or built too much."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders one model's template; safe to share between threads.

    Args:
        max_cpu_s, max_chars: bounds of each rendering.
    """

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self, *, max_cpu_s: float = MAX_CPU_S, max_chars: int = MAX_CHARS) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        self._max_cpu_s = max_cpu_s
        self._max_chars = max_chars
        self._state = threading.local()
        self.concat = self._join  # type: ignore[method-assign]
        self.filters["tojson"] = _tojson
        self.filters[_TURNS] = self._turns
        self.filters[_SIZED] = self._sized
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def render(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """Render within the bounds.

        Raises:
            TemplateLimitError: a bound was met.
            Exception: whatever the template's own code raises.
        """
        self._state.ticks = 0
        self._state.deadline_s = time.thread_time() + self._max_cpu_s
        return template.render(variables)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = _filtered(loop.iter, _TURNS)
        _size_concats(tree)
        return tree

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls; macros that call themselves end here."""
        self._tick()
        if isinstance(getattr(obj, "__self__", None), str):  # a width, as in "x".center(width)
            self._check_size(max(map(_times, args), default=0))
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right` unless the result would be too large."""
        if operator == "**":
            self._check_power(left, right)
        elif operator == "*":
            self._check_size(max(_size(left) * _times(right), _size(right) * _times(left)))
        else:
            self._check_size(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def _turns(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._tick()
            yield item

    def _tick(self) -> None:
        state = self._state
        state.ticks += 1
        if state.ticks % _TICKS_A_LOOK == 0 and time.thread_time() > state.deadline_s:
            raise TemplateLimitError(
                f"it ran for more than {self._max_cpu_s} s of processor time, {state.ticks} loop "
                "turns and calls"
            )

    def _join(self, pieces: Iterable[str]) -> str:
        kept = pieces if isinstance(pieces, list) else list(self._bounded(pieces))
        self._check_size(sum(map(len, kept)))
        return "".join(kept)

    def _bounded(self, pieces: Iterable[str]) -> Iterator[str]:
        size = 0
        for piece in pieces:
            size += len(piece)
            self._check_size(size)
            yield piece

    def _sized(self, text: str) -> str:
        self._check_size(len(text))
        return text

    def _check_size(self, size: int) -> None:
        if size > self._max_chars:
            raise TemplateLimitError(
                f"it builds a text or list of {size} or more, at most {self._max_chars} are allowed"
            )

    def _check_power(self, base: Any, exponent: Any) -> None:
        if isinstance(base, int) and isinstance(exponent, int):
            bits = base.bit_length() * abs(exponent)
            if bits > _MAX_POWER_BITS:
                raise TemplateLimitError(
                    f"it computes a power of {bits} bits, at most {_MAX_POWER_BITS} are allowed"
                )


_TURNS = "tokenspeed_turns"
_SIZED = "tokenspeed_sized"


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(
        node, name, [], [], None, None, lineno=node.lineno, environment=node.environment
    )


def _size_concats(node: nodes.Node) -> None:
    """Put every `a ~ b` below `node` through the length check."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            value[:] = [_sized_concat(item) for item in value]
        else:
            setattr(node, field, _sized_concat(value))
    for child in node.iter_child_nodes():
        _size_concats(child.node if _is_sized(child) else child)  # type: ignore[attr-defined]


def _sized_concat(value: Any) -> Any:
    return _filtered(value, _SIZED) if isinstance(value, nodes.Concat) else value


def _is_sized(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Filter) and node.name == _SIZED


def _size(value: Any) -> int:
    """Return how much of a text, list or number a sum or product would copy."""
    if isinstance(value, str | Sequence):
        return len(value)
    return value.bit_length() // 8 if isinstance(value, int) else 0


def _times(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


class _GenerationTag(Extension):
    """Accepts {% generation %} blocks, which only mark text for training."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without Jinja's HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
