"""Placement rules: the notation of `contracts/placement.py`, read into data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Letters:
    """One dimension of a rule.

    Args:
        letter: its name; "_" and a number where the text says `_`; "..." for leading dimensions.
        count: parts of it, one behind the other: 2 for `2F`.
        is_whole: never cut.
    """

    letter: str
    count: int = 1
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """The dimensions of one argument or result.

    Args:
        is_linear: marked `~`.
    """

    dims: tuple[Letters, ...]
    is_linear: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """How layouts go through a call.

    Args:
        text: as it was written.
        inputs: None for `-`. A module's weights follow its arguments.
        shared: letter -> letter in whose groups it is shared, of `K<N`.
    """

    text: str
    inputs: tuple[Pattern | None, ...]
    outputs: tuple[Pattern, ...]
    shared: tuple[tuple[str, str], ...] = ()


class Mode(Enum):
    """What a call does over one axis, where it cuts no letter."""

    WHOLE = "whole"
    """Every rank computes the same."""
    SUMMANDS = "summands"
    """Linear arguments are summands, so are the results."""


Choice = str | Mode
"""What a call does over one axis: cuts the letter of this name, or a Mode."""
