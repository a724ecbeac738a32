"""Two schemas that both must hold, as one; and whether two schemas share a value.

Only keywords whose meeting is one of the same keyword are joined; others are refused.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

from tokenspeed.grammar.schema_errors import Path, impossible, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Schema = dict[str, Any]

_UNEVALUATED = {
    "unevaluatedProperties": "additionalProperties",
    "unevaluatedItems": "items",
}
_NUMERIC = ("integer", "number")


def merged(one: Schema, other: Schema, path: Path) -> Schema:
    """Return the schema of the values that meet both.

    Raises:
        RequestError: none does, or it cannot be said in one.
    """
    closing = _closing(one, other)
    if closing:
        raise unsupported(
            path,
            f"{closing} beside properties or items of another part is not supported",
            "write one schema with all of them",
        )
    joined = dict(one)
    for name, value in other.items():
        if name not in joined:
            joined[name] = value
        elif joined[name] != value:
            joined[name] = _both(name, joined[name], value, path)
    return joined


def are_disjoint(schemas: Sequence[Schema]) -> bool:
    """Say whether it is certain that no value meets two of the schemas."""
    return all(_disjoint(one, other) for one, other in combinations(schemas, 2))


def standing_alone(schema: Schema, path: Path) -> Schema:
    """Return a schema that will be merged into another one, in whose parts it does not look.

    What it says of unevaluated properties and items is of its own, so it is said of additional
    ones.

    Raises:
        RequestError: it looks into parts of its own, which are not merged yet.
    """
    own = dict(schema)
    for name, instead in _UNEVALUATED.items():
        if name in own:
            if any(word in own for word in ("$ref", "allOf", "anyOf", "oneOf")):
                raise unsupported(
                    (*path, name), f"{name} of a part that has parts itself", f"use {instead}"
                )
            own.setdefault(instead, own.pop(name))
    return own


def _closing(one: Schema, other: Schema) -> str:
    """Return the keyword by which one part is about what only the other declares."""
    for part, rest in ((one, other), (other, one)):
        if part.get("additionalProperties", True) is not True:
            theirs = set(rest.get("properties", {})) | set(rest.get("patternProperties", {}))
            mine = set(part.get("properties", {})) | set(part.get("patternProperties", {}))
            if theirs - mine:
                return "additionalProperties"
        is_about_all = part.get("items", True) is not True
        if is_about_all and part.get("prefixItems", []) != rest.get("prefixItems", []):
            return "items"
    return ""


def _both(name: str, one: Any, other: Any, path: Path) -> Any:
    join = _JOINS.get(name)
    if join is None:
        raise unsupported((*path, name), f"two different {name} for one value", "keep one")
    value = join(one, other, path)
    if value == []:
        raise impossible((*path, name), "what two parts of the schema allow has nothing in common")
    return value


def _types(one: Any, other: Any, path: Path) -> list[str]:
    left = one if isinstance(one, list) else [one]
    right = other if isinstance(other, list) else [other]
    both = [kind for kind in left if kind in right or (kind == "integer" and "number" in right)]
    return both + ["integer"] * ("number" in left and "integer" in right and "integer" not in both)


def _properties(one: Any, other: Any, path: Path) -> Any:
    joined = dict(one)
    for name, value in other.items():
        if name not in joined or joined[name] is True:
            joined[name] = value
        elif value is not True and joined[name] != value:
            joined[name] = {"allOf": [joined[name], value]}
    return joined


def _common(one: Any, other: Any, path: Path) -> Any:
    return [item for item in one if any(item == value for value in other)]


_JOINS: Mapping[str, Callable[[Any, Any, Path], Any]] = {
    "type": _types,
    "properties": _properties,
    "required": lambda one, other, path: list(dict.fromkeys([*one, *other])),
    "enum": _common,
    "minimum": lambda one, other, path: max(one, other),
    "exclusiveMinimum": lambda one, other, path: max(one, other),
    "minLength": lambda one, other, path: max(one, other),
    "minItems": lambda one, other, path: max(one, other),
    "minProperties": lambda one, other, path: max(one, other),
    "maximum": lambda one, other, path: min(one, other),
    "exclusiveMaximum": lambda one, other, path: min(one, other),
    "maxLength": lambda one, other, path: min(one, other),
    "maxItems": lambda one, other, path: min(one, other),
    "maxProperties": lambda one, other, path: min(one, other),
    "items": lambda one, other, path: {"allOf": [one, other]},
    "allOf": lambda one, other, path: [*one, *other],
}


def _disjoint(one: Schema, other: Schema) -> bool:
    if not (_kinds(one) & _kinds(other)):
        return True
    left, right = _constants(one), _constants(other)
    if left and right:
        return not any(item == value for item in left for value in right)
    needed = set(one.get("required", ())) & set(other.get("required", ()))
    return any(_disjoint(_property(one, name), _property(other, name)) for name in needed)


def _property(schema: Schema, name: str) -> Schema:
    found = schema.get("properties", {}).get(name)
    return found if isinstance(found, dict) and "$ref" not in found else {}


def _constants(schema: Schema) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))


def _kinds(schema: Schema) -> set[str]:
    """Return the types that a schema's values may have, numbers as one."""
    given = schema.get("type")
    if given is None:
        constants = _constants(schema)
        if constants:
            return {_kind(item) for item in constants}
        return {"null", "boolean", "object", "array", "number", "string"}
    kinds = given if isinstance(given, list) else [given]
    return {"number" if kind in _NUMERIC else kind for kind in kinds}


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    for kind, name in ((dict, "object"), (list, "array"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "number"
