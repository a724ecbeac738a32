"""References of one schema to its own parts, and schemas that are read without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tokenspeed.grammar.json_merge import merged, standing_alone
from tokenspeed.grammar.schema_errors import Path, impossible, malformed, shown, unsupported
from tokenspeed.grammar.schema_words import ANNOTATIONS, MAX_DEPTH

if TYPE_CHECKING:
    from tokenspeed.grammar.schema_words import Schema


class References:
    """Follows the references of one schema.

    Args:
        root: the whole schema.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._is_one = not any(_has_id(item) for item in _inside(root))

    def resolve(self, reference: object, path: Path) -> object:
        """Return what a reference leads to.

        Raises:
            RequestError: it leads out of the schema, or to no part of it.
        """
        if not isinstance(reference, str):
            raise malformed(path, reference, "a string")
        if reference != "#" and not reference.startswith("#/"):
            raise unsupported(
                path,
                f"the reference {shown(reference)} is not one of this schema",
                "use #/$defs/NAME",
            )
        if not self._is_one:
            raise unsupported(path, "a reference beside a $id within the schema", "drop the $id")
        target: Any = self._root
        for part in reference.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key.isdigit() and int(key) < len(target):
                target = target[int(key)]
            elif isinstance(target, dict) and key in target:
                target = target[key]
            else:
                raise malformed(path, reference, "a place that is in this schema")
        return target

    def plain(self, schema: Schema, path: Path) -> Schema:
        """Return a schema that stands within another one, its own reference followed."""
        seen = 0
        own = standing_alone(schema, path)
        while "$ref" in own:
            seen += 1
            target = self.resolve(own.pop("$ref"), (*path, "$ref"))
            if seen > MAX_DEPTH:
                raise impossible(path, "its reference leads back to itself")
            if target is False:
                raise impossible(path, "it refers to false")
            if isinstance(target, dict):
                own = merged(own, standing_alone(target, path), path)
        return {name: value for name, value in own.items() if name not in ANNOTATIONS}


def _has_id(value: object) -> bool:
    if isinstance(value, dict) and isinstance(value.get("$id"), str):
        return True
    return any(map(_has_id, _inside(value)))


def _inside(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
