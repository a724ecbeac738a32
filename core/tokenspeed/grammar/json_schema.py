"""A JSON schema, made ready for an engine that ignores what it does not know.

Returns a schema of simple parts whose texts all belong to the given one, and refuses with its path
what is malformed, what no value can meet, and what cannot be kept. Where a keyword needs a type
that the schema does not name, the type is added: what is generated has to be one of many.
Source: JSON Schema 2020-12, Core and Validation.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from tokenspeed.grammar.json_merge import are_disjoint, merged
from tokenspeed.grammar.schema_errors import (
    Path,
    bad_pattern,
    impossible,
    malformed,
    shown,
    unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Schema = dict[str, Any]

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly")
    + ("$comment", "$schema", "$id", "$defs", "definitions", "$anchor", "$vocabulary")
    + ("contentEncoding", "contentMediaType", "contentSchema")
)
NUMBER_WORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
KEYWORDS_OF = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": NUMBER_WORDS,
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "unevaluatedProperties",
    ),
}
UNSUPPORTED = {
    "not": "say what is allowed instead",
    "if": "use anyOf",
    "then": "use anyOf",
    "else": "use anyOf",
    "contains": "use prefixItems",
    "minContains": "use minItems",
    "maxContains": "use maxItems",
    "dependentRequired": "use anyOf",
    "dependentSchemas": "use anyOf",
    "dependencies": "use anyOf",
    "additionalItems": "use prefixItems and items",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
FORMATS = frozenset(
    ("date", "date-time", "time", "duration", "email", "hostname")
    + ("ipv4", "ipv6", "uuid", "uri", "uri-reference")
)
COMBINERS = ("allOf", "anyOf", "oneOf")
MAX_DEPTH = 100
MAX_INTEGER = 2**63 - 1


def prepared_schema(schema: object, path: Path = (), *, closed: bool = False) -> Schema | bool:
    """Return a schema that an engine can keep, with the definitions that it refers to.

    Args:
        closed: objects without additionalProperties hold declared properties only.
    Raises:
        RequestError: malformed, impossible or not supported; its param is the path.
    """
    return _Preparer(schema, path, closed).run()


class _Preparer:
    """Walks one schema; definitions that are referred to become `$defs` of the result."""

    def __init__(self, root: object, path: Path, closed: bool) -> None:
        self._root = root
        self._path = path
        self._closed = closed
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Schema | bool] = {}
        self._depth = 0

    def run(self) -> Schema | bool:
        """Prepare the whole."""
        done = self._walk(self._root, self._path)
        _check_ends(done, self._definitions, self._path)
        if not self._definitions or isinstance(done, bool):
            return done
        return {**done, "$defs": self._definitions}

    def _walk(self, schema: object, path: Path) -> Schema | bool:
        if schema is True:
            return True
        if schema is False:
            raise impossible(path, "false allows no value")
        if not isinstance(schema, dict):
            raise malformed(path, schema, "an object or a boolean")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise unsupported(path, f"it is nested deeper than {MAX_DEPTH}", "flatten it")
        done = self._part(schema, path)
        self._depth -= 1
        return done

    def _part(self, schema: Schema, path: Path) -> Schema | bool:
        for name, hint in UNSUPPORTED.items():
            if name in schema:
                raise unsupported((*path, name), f"{name} is not supported", hint)
        own = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
        if "$ref" in own:
            return self._referred(own, path)
        for combiner in COMBINERS:
            if combiner in own:
                return self._combined(own, combiner, path)
        if "enum" in own or "const" in own:
            return _listed(own, path)
        types = _types_of(own, path)
        if not types:
            return True
        parts = [self._of_type(kind, own, path, len(types) > 1) for kind in types]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    # ---- references and combinations

    def _referred(self, own: Schema, path: Path) -> Schema | bool:
        target = self._resolve(own["$ref"], (*path, "$ref"))
        siblings = {name: value for name, value in own.items() if name != "$ref"}
        if siblings:
            if not isinstance(target, dict):
                return self._walk(siblings if target is True else target, path)
            return self._walk(merged(siblings, self._plain(target, path), path), path)
        reference = str(own["$ref"])
        if reference not in self._names:
            name = self._names[reference] = f"d{len(self._names)}"
            depth, self._depth = self._depth, 0
            self._definitions[name] = self._walk(target, path)
            self._depth = depth
        return {"$ref": f"#/$defs/{self._names[reference]}"}

    def _resolve(self, reference: object, path: Path) -> object:
        if not isinstance(reference, str):
            raise malformed(path, reference, "a string")
        if reference != "#" and not reference.startswith("#/"):
            raise unsupported(
                path,
                f"the reference {shown(reference)} is not one of this schema",
                "use #/$defs/NAME",
            )
        target: Any = self._root
        for part in reference.split("/")[1:]:
            key = _unescaped(part)
            if isinstance(target, list) and key.isdigit() and int(key) < len(target):
                target = target[int(key)]
            elif isinstance(target, dict) and key in target:
                target = target[key]
            else:
                raise malformed(path, reference, "a place that is in this schema")
        return target

    def _plain(self, schema: Schema, path: Path) -> Schema:
        """Follow a reference that has siblings, or stands in an allOf."""
        seen = 0
        own = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
        while "$ref" in own:
            seen += 1
            target = self._resolve(own.pop("$ref"), (*path, "$ref"))
            if seen > MAX_DEPTH:
                raise impossible(path, "its reference leads back to itself")
            if target is False:
                raise impossible(path, "it refers to false")
            if isinstance(target, dict):
                target = {k: v for k, v in target.items() if k not in ANNOTATIONS}
                own = merged(own, target, path)
        return own

    def _combined(self, own: Schema, combiner: str, path: Path) -> Schema | bool:
        branches = own[combiner]
        place = (*path, combiner)
        if not isinstance(branches, list) or not branches:
            raise malformed(place, branches, "a list of one or more schemas")
        rest = {name: value for name, value in own.items() if name != combiner}
        if combiner == "allOf":
            whole = rest
            for index, branch in enumerate(branches):
                if branch is not True:
                    whole = merged(whole, self._branch(branch, (*place, index)), (*place, index))
            return self._walk(whole, path)
        if combiner == "oneOf":
            self._check_disjoint(branches, place)
        parts = []
        for index, branch in enumerate(branches):
            if branch is False:
                continue
            each = (*place, index)
            if rest and branch is not True:
                branch = merged(rest, self._branch(branch, each), each)
            parts.append(self._walk(rest if rest and branch is True else branch, each))
        if not parts:
            raise impossible(place, "every branch is false")
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    def _branch(self, branch: object, path: Path) -> Schema:
        if branch is False:
            raise impossible(path, "false allows no value")
        if not isinstance(branch, dict):
            raise malformed(path, branch, "an object or a boolean")
        return self._plain(branch, path)

    def _check_disjoint(self, branches: list[Any], path: Path) -> None:
        plain = [self._branch(item, path) for item in branches if isinstance(item, dict)]
        if len(plain) < len(branches) or not are_disjoint(plain):
            raise unsupported(
                path,
                "oneOf is supported where no two branches can share a value (by their types, or a "
                "required property with different constants)",
                "use anyOf",
            )

    # ---- one type

    def _of_type(self, kind: str, own: Schema, path: Path, is_one_of_many: bool) -> Schema:
        words = KEYWORDS_OF.get("number" if kind == "integer" else kind, ())
        mine = {name: own[name] for name in words if name in own}
        make: Callable[[Schema, Path], Schema] = {
            "string": _string,
            "number": _number,
            "integer": _integer,
            "array": self._array,
            "object": self._object,
        }.get(kind, lambda mine, path: {})
        return {"type": kind, **make(mine, path)}

    def _array(self, mine: Schema, path: Path) -> Schema:
        low, high = _counts(mine, "minItems", "maxItems", path)
        if mine.get("uniqueItems", False) is not False and high > 1:
            raise unsupported((*path, "uniqueItems"), "uniqueItems is not supported", "drop it")
        done: Schema = {}
        first = mine.get("prefixItems", [])
        if not isinstance(first, list):
            raise malformed((*path, "prefixItems"), first, "a list of schemas")
        if first:
            done["prefixItems"] = [
                self._walk(item, (*path, "prefixItems", i)) for i, item in enumerate(first)
            ]
        rest = mine.get("items", mine.get("unevaluatedItems", not self._closed or not first))
        if rest is False:
            if low > len(first):
                raise impossible((*path, "minItems"), f"it is {low}, but {len(first)} items fit")
            high = min(high, len(first))
        if high > len(first) and rest is not False:
            done["items"] = self._walk(rest, (*path, "items"))
        elif first:
            done["items"] = False
        if not first and rest is False:
            high = 0
        done |= {"minItems": low} if low else {}
        return done | ({"maxItems": int(high)} if high != math.inf else {})

    def _object(self, mine: Schema, path: Path) -> Schema:
        low, high = _counts(mine, "minProperties", "maxProperties", path)
        declared = _mapping(mine, "properties", path)
        patterns = _mapping(mine, "patternProperties", path)
        required = mine.get("required", [])
        if not isinstance(required, list) or not all(isinstance(i, str) for i in required):
            raise malformed((*path, "required"), required, "a list of names")
        more = mine.get("additionalProperties", mine.get("unevaluatedProperties"))
        given_more = more
        if more is None:
            more = not (self._closed and (declared or patterns or required))
        done: Schema = {"properties": {}, "additionalProperties": False}
        for name, item in declared.items():
            self._check_patterns(name, patterns, (*path, "properties", name))
            if item is False and name not in required:
                if more is not False:
                    raise unsupported(
                        (*path, "properties", name),
                        "a forbidden property needs additionalProperties false",
                        "add it",
                    )
                continue
            done["properties"][name] = self._walk(item, (*path, "properties", name))
        for name in required:
            if name not in declared:
                done["properties"][name] = self._required(name, patterns, given_more, path)
        if patterns:
            if more is not False:
                raise unsupported(
                    (*path, "patternProperties"),
                    "patternProperties needs additionalProperties false",
                    "add it",
                )
            done["patternProperties"] = {
                bad_pattern(key, (*path, "patternProperties", key)): self._walk(
                    item, (*path, "patternProperties", key)
                )
                for key, item in patterns.items()
            }
        elif more is not False:
            done["additionalProperties"] = self._walk(more, (*path, "additionalProperties"))
        if "propertyNames" in mine:
            if done["properties"] or patterns:
                raise unsupported(
                    (*path, "propertyNames"),
                    "propertyNames beside properties is not supported",
                    "drop it",
                )
            names = {"type": "string", **(self._branch(mine["propertyNames"], path))}
            done["propertyNames"] = self._walk(names, (*path, "propertyNames"))
        _check_number_of(done, required, low, high, path)
        done |= {"required": list(dict.fromkeys(required))} if required else {}
        done |= {"minProperties": low} if low > len(set(required)) else {}
        return done | ({"maxProperties": int(high)} if high != math.inf else {})

    def _check_patterns(self, name: str, patterns: Mapping[str, Any], path: Path) -> None:
        for pattern in patterns:
            if _matches(pattern, name):
                raise unsupported(
                    path, f"it is also met by the pattern {shown(pattern)}", "name it once"
                )

    def _required(
        self, name: str, patterns: Mapping[str, Any], more: object, path: Path
    ) -> Schema | bool:
        place = (*path, "required")
        found = [item for pattern, item in patterns.items() if _matches(pattern, name)]
        if len(found) > 1:
            raise unsupported(place, f"{shown(name)} is met by two patterns", "declare it")
        if found:
            return self._walk(found[0], place)
        if more is False:
            raise impossible(place, f"{shown(name)} is required and no property may have the name")
        return True if more is None else self._walk(more, place)


# ---- values of simple types


def _types_of(own: Schema, path: Path) -> list[str]:
    """Return the types of a schema, those that its keywords are about where it names none."""
    given = own.get("type")
    if given is None:
        return [kind for kind, words in KEYWORDS_OF.items() if any(word in own for word in words)]
    types = given if isinstance(given, list) else [given]
    if not types or any(kind not in TYPES for kind in types):
        raise malformed((*path, "type"), given, "one or more of " + ", ".join(TYPES))
    return list(dict.fromkeys(types))


def _listed(own: Schema, path: Path) -> Schema:
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
    types = _types_of(own, path) if "type" in own else list(TYPES)
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


def _string(mine: Schema, path: Path) -> Schema:
    low, high = _counts(mine, "minLength", "maxLength", path)
    has_length = low > 0 or high != math.inf
    if "pattern" in mine:
        if has_length:
            raise unsupported(
                (*path, "pattern"), "pattern beside minLength or maxLength is not supported",
                "say the length in the pattern",
            )  # fmt: skip
        return {"pattern": bad_pattern(mine["pattern"], (*path, "pattern"))}
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


def _number(mine: Schema, path: Path) -> Schema:
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


def _integer(mine: Schema, path: Path) -> Schema:
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


def _counts(mine: Schema, low_name: str, high_name: str, path: Path) -> tuple[int, float]:
    low, high = mine.get(low_name, 0), mine.get(high_name, math.inf)
    for name, value in ((low_name, low), (high_name, high)):
        is_whole = isinstance(value, float | int) and (value == math.inf or value == int(value))
        if isinstance(value, bool) or not is_whole or value < 0:
            raise malformed((*path, name), value, "a whole number from 0 up")
    if low > high:
        raise impossible((*path, low_name), f"it is {low}, more than {high_name} {high}")
    return int(low), high


def _mapping(mine: Schema, name: str, path: Path) -> dict[str, Any]:
    value = mine.get(name, {})
    if not isinstance(value, dict):
        raise malformed((*path, name), value, "an object")
    return value


def _check_number_of(done: Schema, required: list[str], low: int, high: float, path: Path) -> None:
    declared = len(done["properties"])
    is_closed = done["additionalProperties"] is False and "patternProperties" not in done
    if len(set(required)) > high:
        raise impossible((*path, "maxProperties"), f"it is {high:g}, and more are required")
    if is_closed and low > declared:
        raise impossible((*path, "minProperties"), f"it is {low}, and {declared} are declared")
    if not is_closed and low > max(1, len(set(required))):
        raise unsupported(
            (*path, "minProperties"), "minProperties needs declared properties", "declare them"
        )


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True


def _unescaped(part: str) -> str:
    from urllib.parse import unquote

    return unquote(part).replace("~1", "/").replace("~0", "~")


def _check_ends(done: Schema | bool, definitions: Mapping[str, Any], path: Path) -> None:
    """Refuse a schema each of whose values would have to hold another, without end."""
    ending: set[str] = set()
    while True:
        new = {name for name, item in definitions.items() if _ends(item, ending)} - ending
        if not new:
            break
        ending |= new
    if not _ends(done, ending):
        raise impossible(path, "each value would have to hold another one, without end")


def _ends(schema: Any, ending: set[str]) -> bool:
    """Say whether some finite value belongs to a prepared schema."""
    if not isinstance(schema, dict):
        return True
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2] in ending
    if "anyOf" in schema:
        return any(_ends(item, ending) for item in schema["anyOf"])
    needed = [schema["properties"][name] for name in schema.get("required", ())]
    low = schema.get("minItems", 0)
    first = schema.get("prefixItems", [])[:low]
    needed += first + ([schema.get("items", True)] if low > len(first) else [])
    return all(_ends(item, ending) for item in needed)
