"""The letters of a call: what a rule's dimensions are in it, and how large.

Sizes are those of all ranks together. A letter's segments are those of the argument that has the
most; another argument may have it in one piece of the same size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from tokenspeed.errors import PlacementError
from tokenspeed.placement.graph import Ref, StepArgument
from tokenspeed.placement.notation import LEADING, Letters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed.placement.graph import Node, Value
    from tokenspeed.placement.notation import Rule

Parts = tuple[tuple[int, ...], ...]
"""Sizes of the segments of each dimension, as `Value.parts`."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A rule and the sizes of one call.

    Args:
        inputs: dimensions of each argument, leading ones spelled out; None: no tensor.
        parts: of the same arguments.
        sizes: letter -> its segments.
        outputs: dimensions of each result.
    """

    rule: Rule
    inputs: tuple[tuple[Letters, ...] | None, ...]
    parts: tuple[Parts | None, ...]
    sizes: Mapping[str, tuple[int, ...]]
    outputs: tuple[tuple[Letters, ...], ...]

    def result_parts(self) -> tuple[Parts, ...]:
        """Return the parts of each result.

        Raises:
            PlacementError: no argument and no option says how large a dimension is.
        """
        return tuple(tuple(map(self._segments, dims)) for dims in self.outputs)

    def _segments(self, dim: Letters) -> tuple[int, ...]:
        if dim.size:
            return (dim.size,)
        if dim.letter not in self.sizes:
            _refuse(self.rule, f"nothing says how large {dim.letter} is", "a letter of an argument")
        return self.sizes[dim.letter] * dim.count


def result_parts(
    rule: Rule, arguments: Sequence[Parts | None], options: Mapping[str, Any] | None = None
) -> tuple[Parts, ...]:
    """Return the parts of each result of a call.

    Args:
        arguments: parts of each argument, then of each weight; None: no tensor. The step's context
            is no argument.
        options: keyword arguments, of which a rule may name some (`X=routing.top_k`).
    Raises:
        PlacementError: the arguments do not fit the rule or one another.
    """
    return _sized(rule, tuple(arguments), _given(rule, options or {})).result_parts()


def sized(node: Node, values: Sequence[Value]) -> Sized:
    """Return the letters of a node's call."""
    assert node.rule is not None, "views have no rule"
    arguments = [
        values[given.number].parts if isinstance(given, Ref) else None
        for given in node.inputs
        if not isinstance(given, StepArgument)
    ]
    return _sized(node.rule, (*arguments, *node.weights), _given(node.rule, node.options))


def _given(rule: Rule, options: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    given = []
    for letter, path in rule.options:
        name, *fields = path.split(".")
        value = options.get(name)
        for field in fields:
            value = getattr(value, field, None)
        if isinstance(value, int):
            given.append((letter, value))
    return tuple(given)


@lru_cache(maxsize=4096)
def _sized(
    rule: Rule, arguments: tuple[Parts | None, ...], given: tuple[tuple[str, int], ...]
) -> Sized:
    if len(arguments) > len(rule.inputs):
        _refuse(rule, f"{len(arguments)} arguments", f"at most {len(rule.inputs)}")
    leading = _num_leading(rule, arguments)
    sizes: dict[str, tuple[int, ...]] = {letter: (size,) for letter, size in given}
    inputs: list[tuple[Letters, ...] | None] = []
    for number, (pattern, parts) in enumerate(zip(rule.inputs, arguments, strict=False)):
        dims = None if pattern is None or parts is None else _spelled(pattern.dims, leading)
        inputs.append(dims)
        if dims is None or parts is None:
            continue
        if len(dims) != len(parts):
            _refuse(rule, f"argument {number} of {len(parts)} dimensions", f"{len(dims)}")
        for dim, segments in zip(dims, parts, strict=True):
            _learn(rule, sizes, dim, segments, number)
    outputs = tuple(_spelled(pattern.dims, leading) for pattern in rule.outputs)
    return Sized(rule, tuple(inputs), arguments, sizes, outputs)


def _num_leading(rule: Rule, arguments: Sequence[Parts | None]) -> int:
    """Return how many dimensions `...` is in this call."""
    for pattern, parts in zip(rule.inputs, arguments, strict=False):
        if pattern and parts is not None and pattern.dims[:1] == (Letters(LEADING),):
            return len(parts) - len(pattern.dims) + 1
    return 0


def _spelled(dims: tuple[Letters, ...], leading: int) -> tuple[Letters, ...]:
    if not dims or dims[0].letter != LEADING:
        return dims
    return (*(Letters(f"{LEADING}{number}") for number in range(leading)), *dims[1:])


def _learn(
    rule: Rule,
    sizes: dict[str, tuple[int, ...]],
    dim: Letters,
    segments: tuple[int, ...],
    number: int,
) -> None:
    """Note a letter's segments, or compare them with those known."""
    if dim.size:
        if sum(segments) != dim.size:
            _refuse(rule, f"{sum(segments)} elements in argument {number}", f"{dim.size}")
        return
    own = _one_of(rule, dim, segments, number)
    known = sizes.setdefault(dim.letter, own)
    if own == known or (sum(own) == sum(known) and len(own) == 1):
        return
    if sum(own) == sum(known) and len(known) == 1:
        sizes[dim.letter] = own
        return
    _refuse(rule, f"{dim.letter} of {own} in argument {number}", f"{known}, as before it")


def _one_of(rule: Rule, dim: Letters, segments: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Return the segments of one of `count` equal parts."""
    if dim.count == 1:
        return segments
    if len(segments) == 1 and segments[0] % dim.count == 0:
        return (segments[0] // dim.count,)
    each = len(segments) // dim.count
    if each and segments == segments[:each] * dim.count:
        return segments[:each]
    found = f"segments {segments} of {dim.count}{dim.letter} in argument {number}"
    _refuse(rule, found, f"{dim.count} equal parts")


def _refuse(rule: Rule, found: str, expected: str) -> NoReturn:
    raise PlacementError(
        f"a call does not fit its placement rule {rule.text!r}: found {found}, expected "
        f"{expected}; correct the call or the rule"
    )
