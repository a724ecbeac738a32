"""Schemas of arrays and objects: what each item and property may be, and how many there are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.grammar.pattern_rules import rule_of
from tokenspeed.grammar.schema_errors import (
    Path,
    impossible,
    malformed,
    shown,
    unsupported,
)
from tokenspeed.grammar.schema_names import are_apart, matches, other_names
from tokenspeed.grammar.schema_values import counts, mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenspeed.grammar.schema_words import Schema


@dataclass(frozen=True, slots=True)
class Containers:
    """Prepares the two types whose values hold others.

    Args:
        walk: prepares the schema of what is held.
        closed: objects hold declared properties only, and arrays declared items, where they do not
            say it themselves.
    """

    walk: Callable[[object, Path], Any]
    closed: bool

    def array(self, mine: Schema, path: Path) -> Schema:
        """Prepare what an array's keywords say."""
        low, high = counts(mine, "minItems", "maxItems", path)
        if mine.get("uniqueItems", False) is not False and high > 1:
            raise unsupported((*path, "uniqueItems"), "uniqueItems is not supported", "drop it")
        first = mine.get("prefixItems", [])
        if not isinstance(first, list):
            raise malformed((*path, "prefixItems"), first, "a list of schemas")
        rest = mine.get("items", mine.get("unevaluatedItems", not self.closed or not first))
        if False in first:
            first, rest = first[: first.index(False)], False
        if rest is False:
            if low > len(first):
                raise impossible((*path, "minItems"), f"it is {low}, but {len(first)} items fit")
            high = min(high, len(first))
        done: Schema = {}
        if first:
            walked = (self.walk(item, (*path, "prefixItems", i)) for i, item in enumerate(first))
            # An engine may take no boolean here.
            done = {"prefixItems": [{} if item is True else item for item in walked]}
        if high > len(first) and rest is not False:
            done["items"] = self.walk(rest, (*path, "items"))
        elif first:
            done["items"] = False
        done |= {"minItems": low} if low else {}
        return done | ({"maxItems": int(high)} if high != math.inf else {})

    def of_object(self, mine: Schema, path: Path) -> Schema:
        """Prepare what an object's keywords say."""
        low, high = counts(mine, "minProperties", "maxProperties", path)
        declared = mapping(mine, "properties", path)
        patterns = mapping(mine, "patternProperties", path)
        required = mine.get("required", [])
        if not isinstance(required, list) or not all(isinstance(i, str) for i in required):
            raise malformed((*path, "required"), required, "a list of names")
        more = mine.get("additionalProperties", mine.get("unevaluatedProperties"))
        properties = {
            **self._declared(declared, patterns, required, path),
            **{
                name: self._required(name, patterns, more, path)
                for name in required
                if name not in declared
            },
        }
        if more is None:
            more = not (self.closed and (declared or patterns or required))
        done: Schema = {"properties": properties, "additionalProperties": False}
        done |= self._others({*declared, *required}, patterns, more, path)
        if mine.get("propertyNames", True) is not True:
            done["propertyNames"] = self._names(mine, done, path)
        _check_number_of(done, required, low, high, path)
        done |= {"required": list(dict.fromkeys(required))} if required else {}
        done |= {"minProperties": low} if low > len(set(required)) else {}
        return done | ({"maxProperties": int(high)} if high != math.inf else {})

    def _declared(
        self,
        declared: Mapping[str, Any],
        patterns: Mapping[str, Any],
        required: list[str],
        path: Path,
    ) -> Schema:
        """Prepare the declared properties; one that may not be there is left out."""
        done: Schema = {}
        for name, item in declared.items():
            place = (*path, "properties", name)
            for pattern in patterns:
                if matches(pattern, name):
                    raise unsupported(
                        place, f"it is also met by the pattern {shown(pattern)}", "name it once"
                    )
            if item is not False or name in required:
                done[name] = self.walk(item, place)
        return done

    def _required(
        self, name: str, patterns: Mapping[str, Any], more: object, path: Path
    ) -> Schema | bool:
        """Prepare a property that is required and not declared."""
        place = (*path, "required")
        found = [item for pattern, item in patterns.items() if matches(pattern, name)]
        if len(found) > 1:
            raise unsupported(place, f"{shown(name)} is met by two patterns", "declare it")
        if found:
            more = found[0]
        if more is False:
            raise impossible(place, f"{shown(name)} is required and no property may have the name")
        done: Schema | bool = self.walk(True if more is None else more, place)
        return done

    def _others(
        self, named: set[str], patterns: Mapping[str, Any], more: object, path: Path
    ) -> Schema:
        """Prepare the properties that are not declared.

        Where others are, an engine may take their names for any text: one that spells a declared
        name by an escape would get round its schema. So they are told by a pattern.
        """
        place = (*path, "patternProperties")
        if patterns:
            if more is not False:
                raise unsupported(
                    place, "patternProperties needs additionalProperties false", "add it"
                )
            if not are_apart(patterns):
                raise unsupported(
                    place, "two patterns may meet one name", "begin each with ^ and another text"
                )
            for key in patterns:
                rule_of(key, (*place, key))
            walked = {key: self.walk(item, (*place, key)) for key, item in patterns.items()}
            return {"patternProperties": walked}
        if more is False:
            return {}
        walked = self.walk(more, (*path, "additionalProperties"))
        if not named:
            return {"additionalProperties": walked}
        return {"patternProperties": {other_names(named): walked}}

    def _names(self, mine: Schema, done: Schema, path: Path) -> Schema | bool:
        """Prepare what is said of every property's name."""
        place = (*path, "propertyNames")
        names = mine["propertyNames"]
        if done["properties"] or "patternProperties" in done:
            raise unsupported(place, "propertyNames beside properties is not supported", "drop it")
        if isinstance(names, dict):
            names = {"type": "string", **names}
        walked: Schema | bool = self.walk(names, place)
        return walked


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
