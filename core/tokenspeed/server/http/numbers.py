"""Integers in bodies. JSON has one kind of number: 16.0 is an integer there, and 16.5 is none."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator


def is_number(value: Any) -> bool:
    """Whether a decoded value is a JSON number: Python takes true for 1."""
    return type(value) in (int, float)


def _whole(value: Any) -> Any:
    """Return an integer that was written as a float as such; leave all else to be refused."""
    return int(value) if type(value) is float and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]
"""An integer in any spelling of JSON: 16, 16.0, 1.6e1. Neither "16" nor true is one."""
