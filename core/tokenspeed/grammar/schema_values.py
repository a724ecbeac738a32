"""Schemas of values that hold no others: texts, numbers, lists of values; what fits no value."""

from __future__ import annotations

import math
from typing import Any

from tokenspeed.grammar.pattern_rules import rule_of
from tokenspeed.grammar.schema_errors import Path, impossible, malformed, unsupported
from tokenspeed.grammar.schema_words import (
    FORMATS,
    KEYWORDS_OF,
    MAX_INTEGER,
    NUMBER_WORDS,
    TYPES,
    Schema,
)


def types_of(own: Schema, path: Path) -> list[str]:
    """Return the types of a schema, those that its keywords are about where it names none."""
    given = own.get("type")
    if given is None:
        return [kind for kind, words in KEYWORDS_OF.items() if any(word in own for word in words)]
    types = given if isinstance(given, list) else [given]
    if not types or any(kind not in TYPES for kind in types):
        raise malformed((*path, "type"), given, "one or more of " + ", ".join(TYPES))
    return list(dict.fromkeys(types))


def listed(own: Schema, path: Path) -> Schema:
    values = own.get("enum", [own.get("const")])
    if not isinstance(values, list):
        raise malformed((*path, "enum"), values, "a list of values")
    if "const" in own and "enum" in own:
        values = [item for item in values if _same(item, own["const"])]
    left = set(own) - {"enum", "const", "type", "format"}
    used = {word for words in KEYWORDS_OF.values() for word in words}
    if left & used:
        name = sorted(left & used)[0]
        raise unsupported(
            (*path, name), f"{name} beside enum or const", "drop the values it forbids"
        )
    types = types_of(own, path) if "type" in own else list(TYPES)
    kept = [item for item in values if any(_is_a(item, kind) for kind in types)]
    if not kept:
        raise impossible((*path, "enum" if "enum" in own else "const"), "no value of it is allowed")
    return {"enum": kept}


def _same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _is_a(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    kinds: dict[str, Any] = {
        "null": type(None), "object": dict, "array": list, "number": (int, float), "string": str,
    }  # fmt: skip
    return kind in kinds and isinstance(value, kinds[kind])


def string(mine: Schema, path: Path) -> Schema:
    low, high = counts(mine, "minLength", "maxLength", path)
    has_length = low > 0 or high != math.inf
    if "pattern" in mine:
        if has_length:
            raise unsupported(
                (*path, "pattern"), "pattern beside minLength or maxLength is not supported",
                "say the length in the pattern",
            )  # fmt: skip
        rule_of(mine["pattern"], (*path, "pattern"))
        return {"pattern": mine["pattern"]}
    if has_length:
        return {"minLength": low} | ({"maxLength": int(high)} if high != math.inf else {})
    # A format is a remark in JSON Schema; those that are known are kept.
    return {"format": mine["format"]} if mine.get("format") in FORMATS else {}


def _limits(mine: Schema, path: Path) -> dict[str, float | int]:
    limits = {}
    for name in NUMBER_WORDS:
        if name in mine:
            value = mine[name]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise malformed((*path, name), value, "a number")
            if abs(value) > MAX_INTEGER:
                raise unsupported((*path, name), f"{value} is too large", "use a smaller one")
            limits[name] = value
    return limits


def number(mine: Schema, path: Path) -> Schema:
    limits = _limits(mine, path)
    if "multipleOf" in limits:
        raise unsupported(
            (*path, "multipleOf"), "multipleOf is supported for integers only", 'use type "integer"'
        )
    low = max(limits.get("minimum", -math.inf), limits.get("exclusiveMinimum", -math.inf))
    high = min(limits.get("maximum", math.inf), limits.get("exclusiveMaximum", math.inf))
    is_open = low in (limits.get("exclusiveMinimum"),) or high in (limits.get("exclusiveMaximum"),)
    if low > high or (low == high and is_open):
        raise impossible(path, f"no number lies between {low} and {high}")
    done: Schema = {}
    if low > -math.inf:
        exclusive = low == limits.get("exclusiveMinimum")
        done["exclusiveMinimum" if exclusive else "minimum"] = low
    if high < math.inf:
        exclusive = high == limits.get("exclusiveMaximum")
        done["exclusiveMaximum" if exclusive else "maximum"] = high
    return done


def integer(mine: Schema, path: Path) -> Schema:
    limits = _limits(mine, path)
    low, high = limits.get("minimum", -math.inf), limits.get("maximum", math.inf)
    if "exclusiveMinimum" in limits:
        low = max(low, math.floor(limits["exclusiveMinimum"]) + 1)
    if "exclusiveMaximum" in limits:
        high = min(high, math.ceil(limits["exclusiveMaximum"]) - 1)
    done: Schema = {}
    if low > -math.inf:
        done["minimum"] = low = math.ceil(low)
    if high < math.inf:
        done["maximum"] = high = math.floor(high)
    step = limits.get("multipleOf")
    if step is not None:
        if step != int(step) or step <= 0:
            raise unsupported(
                (*path, "multipleOf"), f"{step} is no whole number above 0", "use one"
            )
        if done:
            raise unsupported(
                (*path, "multipleOf"), "multipleOf beside limits is not supported", "use enum"
            )
        return {"multipleOf": int(step)}
    if low > high:
        raise impossible(path, f"no integer lies between {low} and {high}")
    return done


def counts(mine: Schema, low_name: str, high_name: str, path: Path) -> tuple[int, float]:
    low, high = mine.get(low_name, 0), mine.get(high_name, math.inf)
    for name, value in ((low_name, low), (high_name, high)):
        is_whole = isinstance(value, float | int) and (value == math.inf or value == int(value))
        if isinstance(value, bool) or not is_whole or value < 0:
            raise malformed((*path, name), value, "a whole number from 0 up")
    if low > high:
        raise impossible((*path, low_name), f"it is {low}, more than {high_name} {high}")
    return int(low), high


def mapping(mine: Schema, name: str, path: Path) -> dict[str, Any]:
    value = mine.get(name, {})
    if not isinstance(value, dict):
        raise malformed((*path, name), value, "an object")
    return value
