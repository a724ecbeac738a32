"""Whether some finite value belongs to a prepared schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.grammar.schema_errors import Path, impossible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.grammar.schema_words import Schema


def check_ends(done: Schema | bool, definitions: Mapping[str, Any], path: Path) -> None:
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
