"""The notation of placement rules (`contracts/placement.py`), read into data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from tokenspeed.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LEADING = "..."
_DIM = re.compile(r"(?:(?P<count>\d+)?(?P<letter>[A-Z])(?P<whole>!)?|(?P<size>\d+))")
_SHARED = re.compile(r"([A-Z])<([A-Z])")
_OPTION = re.compile(r"([A-Z])=([a-z_]+(?:\.[a-z_]+)*)")


@dataclass(frozen=True, slots=True)
class Letters:
    """One dimension of a rule.

    Args:
        letter: its name; "_" and a number where the text says `_`; "..." for leading dimensions,
            which are "...0", "...1" and so on in a call.
        count: parts of it, one behind the other: 2 for `2F`.
        is_whole: never cut.
        size: of a dimension that the text gives as a number; 0: it has a letter.
    """

    letter: str
    count: int = 1
    is_whole: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class Pattern:
    """The dimensions of one argument or result.

    Args:
        is_linear: marked `~`.
        counted: letter whose elements the argument's numbers count, of `V[T]`.
    """

    dims: tuple[Letters, ...]
    is_linear: bool = False
    counted: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """How layouts go through a call; one object a text.

    Args:
        text: as it was written.
        inputs: None for `-`. A module's weights follow its arguments.
        shared: letter -> letter in whose groups it is shared, of `K<N`.
        options: letter -> option that says its size, of `X=routing.top_k`.
        summed: letters over which the results are sums: cut, the results are summands.
        whole: letters that are never cut.
    """

    text: str
    inputs: tuple[Pattern | None, ...]
    outputs: tuple[Pattern, ...]
    shared: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    summed: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()


@cache
def parse(text: str) -> Rule:
    """Read a placement rule.

    Raises:
        PlacementError: it is not in the notation; shows the part that is not.
    """
    body, _, clauses = text.partition(";")
    sides = body.split("->")
    if len(sides) != 2:
        _refuse(text, body.strip(), "arguments -> results")
    numbers = iter(range(text.count("_")))
    inputs = tuple(_argument(text, part, numbers) for part in _parts(sides[0]))
    results = [_argument(text, part, numbers) for part in _parts(sides[1])]
    outputs = tuple(pattern for pattern in results if pattern is not None)
    if any(pattern is None or pattern.is_linear or pattern.counted for pattern in results):
        _refuse(text, sides[1].strip(), "results of plain dimensions")
    shared, options = _clauses(text, clauses)
    given = _letters(pattern for pattern in inputs if pattern)
    made = _letters(outputs)
    for letter in {letter for pair in shared for letter in pair} - given:
        _refuse(text, letter, "a letter of an argument")
    carried = made | {low for low, high in shared if high in made}
    whole = _whole(text, (*inputs, *outputs))
    return Rule(text, inputs, outputs, shared, options, frozenset(given - carried - whole), whole)


def _argument(text: str, part: str, numbers: Iterator[int]) -> Pattern | None:
    if part == "-":
        return None
    is_linear, rest = part.startswith("~"), part.removeprefix("~").strip()
    counted = ""
    if re.fullmatch(r"[A-Z]\[.*\]", rest):
        counted, rest = rest[0], rest[2:-1]
    dims = tuple(_dim(text, word, numbers) for word in rest.split())
    if any(dim.letter == LEADING for dim in dims[1:]):
        _refuse(text, part, "... before all other dimensions")
    return Pattern(dims, is_linear, counted)


def _dim(text: str, word: str, numbers: Iterator[int]) -> Letters:
    if word == LEADING:
        return Letters(LEADING)
    if word == "_":
        return Letters(f"_{next(numbers)}", is_whole=True)
    match = _DIM.fullmatch(word)
    if match is None:
        _refuse(text, word, "a dimension such as D, D!, 2F, _, 1 or ...")
    if match["size"]:
        return Letters(word, is_whole=True, size=int(word))
    return Letters(match["letter"], int(match["count"] or 1), bool(match["whole"]))


def _clauses(
    text: str, clauses: str
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    shared, options = [], []
    for clause in _parts(clauses):
        if match := _SHARED.fullmatch(clause):
            shared.append((match[1], match[2]))
        elif match := _OPTION.fullmatch(clause):
            options.append((match[1], match[2]))
        else:
            _refuse(text, clause, "a clause such as K<N or X=routing.top_k")
    return tuple(shared), tuple(options)


def _whole(text: str, patterns: Iterable[Pattern | None]) -> frozenset[str]:
    """Return the letters marked `!`, which are marked wherever they stand."""
    dims = [dim for pattern in patterns if pattern for dim in pattern.dims]
    whole = frozenset(dim.letter for dim in dims if dim.is_whole)
    for dim in dims:
        if dim.letter in whole and not dim.is_whole:
            _refuse(text, dim.letter, f"{dim.letter}! everywhere or nowhere")
    return whole


def _letters(patterns: Iterable[Pattern]) -> set[str]:
    return {dim.letter for pattern in patterns for dim in pattern.dims if not dim.size}


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []


def _refuse(text: str, found: str, expected: str) -> NoReturn:
    raise PlacementError(
        f"placement rule {text!r} cannot be read: found {found!r}, expected {expected}; "
        "the notation is that of contracts/placement.py"
    )
