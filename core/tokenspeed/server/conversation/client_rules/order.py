"""Tool and key order: the same tools, or their keys, in another order read the same.

Tools stand by name. Keys of a schema stand as they are usually written (type, description,
properties, required, ...), names of properties by alphabet; JSON gives neither order a meaning.
Arrays keep theirs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.client_rule import TemplateFacts
    from tokenspeed.contracts.conversation import Conversation, Tool

_USUAL = (
    *("$schema", "$id", "$ref", "title", "type", "description", "enum", "const", "format"),
    *("items", "properties", "required", "additionalProperties", "default", "examples"),
)
_PLACE = {key: (index, key) for index, key in enumerate(_USUAL)}
_NAMES = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependentRequired", "$defs"}
    | {"definitions"}
)
"""Keywords whose keys are names that an author chose."""
_DATA = frozenset({"default", "const", "enum", "examples"})
"""Keywords whose values are data and no schema."""


class Order:
    """Puts tools, and the keys of their schemas, into one order."""

    def __init__(self, template: TemplateFacts) -> None:
        """Depends on no template."""

    def apply(self, conversation: Conversation) -> Conversation:
        """Return the conversation with its tools in order."""
        tools = sorted(map(_tool, conversation.tools), key=lambda tool: tool.name)
        if all(one is other for one, other in zip(tools, conversation.tools, strict=True)):
            return conversation
        return dataclasses.replace(conversation, tools=tuple(tools))


def _tool(tool: Tool) -> Tool:
    parameters = _schema(tool.parameters)
    return (
        tool if parameters is tool.parameters else dataclasses.replace(tool, parameters=parameters)
    )


def _schema(value: Any) -> Any:
    """Order a schema; the same object when it is in order."""
    if isinstance(value, list):
        return _same_or(value, [_schema(item) for item in value])
    if not isinstance(value, dict):
        return value
    keys = sorted(value, key=lambda key: _PLACE.get(key, (len(_USUAL), key)))
    return _same_or_dict(value, {key: _keyword(key, value[key]) for key in keys})


def _keyword(key: str, value: Any) -> Any:
    if key in _DATA:
        return _data(value)
    if key in _NAMES and isinstance(value, dict):
        return _same_or_dict(value, {name: _schema(value[name]) for name in sorted(value)})
    return _schema(value)


def _data(value: Any) -> Any:
    if isinstance(value, list):
        return _same_or(value, [_data(item) for item in value])
    if not isinstance(value, dict):
        return value
    return _same_or_dict(value, {key: _data(value[key]) for key in sorted(value)})


def _same_or(old: list[Any], new: list[Any]) -> list[Any]:
    return old if all(one is other for one, other in zip(old, new, strict=True)) else new


def _same_or_dict(old: Mapping[str, Any], new: dict[str, Any]) -> Mapping[str, Any]:
    is_same = all(
        key == other and old[key] is new[key] for key, other in zip(old, new, strict=True)
    )
    return old if is_same else new
