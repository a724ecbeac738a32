"""A JSON schema, made ready for an engine that ignores what it does not know.

Returns a schema of simple parts whose texts all belong to the given one, and refuses with its path
what is malformed, what no value can meet, and what cannot be kept. Where a keyword needs a type
that the schema does not name, the type is added: what is generated has to be one of many.
Source: JSON Schema 2020-12, Core and Validation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.grammar.json_merge import are_disjoint, merged
from tokenspeed.grammar.schema_containers import Containers
from tokenspeed.grammar.schema_ends import check_ends
from tokenspeed.grammar.schema_errors import Path, impossible, malformed, unsupported
from tokenspeed.grammar.schema_references import References
from tokenspeed.grammar.schema_values import integer, listed, number, string, types_of
from tokenspeed.grammar.schema_words import (
    ANNOTATIONS,
    COMBINERS,
    KEYWORDS_OF,
    MAX_DEPTH,
    UNSUPPORTED,
    Schema,
)

if TYPE_CHECKING:
    from collections.abc import Callable


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
        self._references = References(root)
        containers = Containers(self._walk, closed)
        self._makers: dict[str, Callable[[Schema, Path], Schema]] = {
            "string": string,
            "number": number,
            "integer": integer,
            "array": containers.array,
            "object": containers.of_object,
        }
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Schema | bool] = {}
        self._depth = 0

    def run(self) -> Schema | bool:
        """Prepare the whole."""
        done = self._walk(self._root, self._path)
        check_ends(done, self._definitions, self._path)
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
            return listed(own, path)
        types = types_of(own, path)
        if not types:
            return True
        parts = [self._of_type(kind, own, path) for kind in types]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    def _referred(self, own: Schema, path: Path) -> Schema | bool:
        target = self._references.resolve(own["$ref"], (*path, "$ref"))
        siblings = {name: value for name, value in own.items() if name != "$ref"}
        if siblings:
            if not isinstance(target, dict):
                return self._walk(siblings if target is True else target, path)
            return self._walk(merged(siblings, self._references.plain(target, path), path), path)
        reference = str(own["$ref"])
        if reference not in self._names:
            name = self._names[reference] = f"d{len(self._names)}"
            depth, self._depth = self._depth, 0
            self._definitions[name] = self._walk(target, path)
            self._depth = depth
        return {"$ref": f"#/$defs/{self._names[reference]}"}

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
        return self._references.plain(branch, path)

    def _check_disjoint(self, branches: list[Any], path: Path) -> None:
        plain = [self._branch(item, path) for item in branches if isinstance(item, dict)]
        if len(plain) < len(branches) or not are_disjoint(plain):
            raise unsupported(
                path,
                "oneOf is supported where no two branches can share a value (by their types, or a "
                "required property with different constants)",
                "use anyOf",
            )

    def _of_type(self, kind: str, own: Schema, path: Path) -> Schema:
        words = KEYWORDS_OF.get("number" if kind == "integer" else kind, ())
        mine = {name: own[name] for name in words if name in own}
        make = self._makers.get(kind)
        return {"type": kind, **(make(mine, path) if make is not None else {})}
