"""Bodies of requests: the base of every schema, and the check of a decoded body against one.

pydantic checks the types; fields that are unknown or not built are refused by name before. Knows no
API: each schema brings its own tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pydantic
from pydantic import ConfigDict

from tokenspeed.errors import RequestError
from tokenspeed.server.http.fields import known_fields, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

    from tokenspeed.server.http.field_limits import FieldLimits

IS_BODY = "x-body"
"""Mark of a body in JSON schemas."""


class Strict(pydantic.BaseModel):
    """No coercion: "3" is not 3 and true is not 1."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Lenient(pydantic.BaseModel):
    """A nested object that clients send back as they got it: what else it holds is ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Body(Strict):
    """The body of a route."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Field that is not built -> the values (beside null) that ask for nothing."""
    inert: ClassVar[Mapping[str, str]] = {}
    """Field that is accepted and ignored -> why that changes nothing."""
    ids_field: ClassVar[str] = ""
    """Field that may be a long list of token ids, which arrives as an int32 array."""

    @classmethod
    def prepared(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Return the fields as the schema reads them; look at what pydantic would name badly.

        Raises:
            RequestError: something in a nested field is unknown or not built.
        """
        return given

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Say in the JSON schema what the tables say."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        return with_tables(schema, cls.neutral, cls.inert) | {IS_BODY: True}


Schema = TypeVar("Schema", bound=Body)


def read_request(schema: type[Schema], body: Any, limits: FieldLimits) -> Schema:
    """Check a decoded JSON body against a schema and the limits of its fields.

    Raises:
        RequestError: names the first offending field, its value and what is allowed.
    """
    if not isinstance(body, dict):
        raise RequestError(
            f"the body is a JSON {_json_type(body)}, a JSON object is needed; send one"
        )
    # A field of the schema is never "not built" there, whatever another route says.
    names = frozenset(schema.model_fields)
    given = known_fields(body, names, neutral=schema.neutral, inert=schema.inert)
    limits.check_lengths(given)
    try:
        return schema.model_validate(schema.prepared(given))
    except pydantic.ValidationError as error:
        raise _request_error(error) from None


def with_tables(
    schema: JsonSchemaValue,
    neutral: Mapping[str, tuple[Any, ...]],
    inert: Mapping[str, str],
) -> JsonSchemaValue:
    """Return the JSON schema of fields among which tables allow more; null is as good as none."""
    required = schema.get("required", ())
    fields: dict[str, Any] = {name: {"description": why} for name, why in inert.items()}
    fields |= {name: {"enum": [None, *values]} for name, values in neutral.items()}
    fields |= {
        name: item if name in required else {"anyOf": [item, {"type": "null"}]}
        for name, item in schema["properties"].items()
    }
    return schema | {"properties": fields}


def unsupported(param: str, value: Any, what: str) -> RequestError:
    """Return the refusal of something that is known and not built."""
    verb = f"{what} supported" if what.startswith("only") else f"{what} not supported"
    return RequestError(
        f"{param} is {shorten(value)}: {verb} in this version; remove it",
        param=param,
        code="unsupported_parameter",
    )


def _request_error(error: pydantic.ValidationError) -> RequestError:
    errors = error.errors(include_url=False)
    same = [item for item in errors if item["loc"][0] == errors[0]["loc"][0]]
    # Of a union's branches, the one that the value's type fits says what is wrong with it.
    first = next((item for item in same if not item["type"].endswith("_type")), same[0])
    named = [part for part in first["loc"] if isinstance(part, int) or part.islower()]
    param = ".".join(str(part)[:64] for part in named if not _is_type_name(part))
    if first["type"] == "missing":
        return RequestError(f"{param} is missing; it is required, add it", param=param)
    allowed = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] == "model_type":  # pydantic would name a class of ours
        allowed = "input should be an object"
    return RequestError(f"{param} is {shorten(first['input'])}: {allowed}; change it", param=param)


_TYPE_NAMES = frozenset({"str", "int", "dict[str,any]"})


def _is_type_name(part: int | str) -> bool:
    """Whether a part of pydantic's path names a branch of a union and no field."""
    return isinstance(part, str) and (part in _TYPE_NAMES or "[" in part or "tagged" in part)


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", str: "string", int: "number", float: "number", list: "array"}
    return names.get(type(value), type(value).__name__)
