"""Fields of several forms that pydantic does not tell apart: what they may hold, for the document.

`prompt_forms.py` and `structured.py` check them, with better words than a union's.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from tokenspeed.server.http.field_limits import MAX_PROMPTS
from tokenspeed.server.structured import EXTENSIONS

_TEXT = {"type": "string", "minLength": 1}
_SCHEMA = {"type": ["object", "boolean"]}
_CHOICES = {"type": "array", "items": _TEXT, "minItems": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_MEMBERS: dict[str, Any] = {
    "json": _SCHEMA,
    "regex": _TEXT,
    "choice": _CHOICES,
    "grammar": _TEXT,
    "json_object": {"type": "boolean"},
    "structural_tag": {"type": "object"},
}
assert _MEMBERS.keys() == EXTENSIONS.keys()


def _tagged(kind: str, **fields: Any) -> dict[str, Any]:
    needed = ["type", *fields]
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, **fields},
        "required": needed,
    }


_FORMATS = [
    _tagged("text"),
    _tagged("json_object"),
    _tagged(
        "json_schema",
        json_schema={
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "schema": {"type": "object"},
                "strict": {"type": ["boolean", "null"]},
            },
        },
    ),
    _tagged("structural_tag"),
]
_PROMPTS = [
    {"type": "string"},
    {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
    _IDS,
    {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
]

ResponseFormat = Annotated[Any, WithJsonSchema({"anyOf": _FORMATS})]
StructuredOutputs = Annotated[
    Any,
    WithJsonSchema({"type": "object", "properties": _MEMBERS, "additionalProperties": False}),
]
JsonSchema = Annotated[Any, WithJsonSchema({"anyOf": [_SCHEMA, _TEXT]})]
Pattern = Annotated[Any, WithJsonSchema(_TEXT)]
Choices = Annotated[Any, WithJsonSchema(_CHOICES)]
PromptForms = Annotated[Any, WithJsonSchema({"anyOf": _PROMPTS})]
"""str | list[str] | list[int] | list[list[int]], or an array of ids; see `prompt_forms.py`."""
