"""The language of an answer, from the fields that ask for one and the tools that may be called.

Every API gives its fields the same meaning here; the engine checks the languages themselves.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tokenspeed.contracts.conversation import ToolChoice
from tokenspeed.contracts.grammar import GrammarKind, GrammarSpec
from tokenspeed.errors import RequestError
from tokenspeed.server.http.fields import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed.contracts.conversation import Conversation, Tool

FORMATS = ("text", "json_object", "json_schema", "structural_tag")
EXTENSIONS: Mapping[str, GrammarKind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "ebnf",
    "json_object": "json_object",
    "structural_tag": "structural_tag",
}
"""Members of `structured_outputs`; `guided_json` and its like are the first four."""


class CallLanguage(Protocol):
    """What is asked of the parser of a server's answers."""

    def structure(self, tools: tuple[Tool, ...], choice: ToolChoice) -> GrammarSpec | None:
        """Return the language of an answer whose calls obey their schemas; None: it has none."""
        ...


def grammar_of(fields: Mapping[str, Any]) -> GrammarSpec | None:
    """Return the language that a request asks for.

    Args:
        fields: response_format, structured_outputs, guided_json, guided_regex, guided_choice and
            guided_grammar, those that were given.
    Raises:
        RequestError: a field is not as needed, or two of them ask.
    """
    found = []
    if fields.get("response_format") is not None:
        found.append(_of_format(fields["response_format"]))
    for name, kind in EXTENSIONS.items():
        value = fields.get(f"guided_{name}")
        if value is not None:
            found.append(_of_extension(kind, value, f"guided_{name}"))
    outputs = fields.get("structured_outputs")
    for name, value in ({} if outputs is None else _members(outputs)).items():
        found.append(_of_extension(EXTENSIONS[name], value, f"structured_outputs.{name}"))
    specs = [spec for spec in found if spec is not None]
    if len(specs) > 1:
        raise RequestError(
            f"{specs[0].field} and {specs[1].field} each ask for a language; give one of them",
            param=specs[1].field,
        )
    return specs[0] if specs else None


def language_of(
    asked: GrammarSpec | None, conversation: Conversation, parser: CallLanguage | None
) -> tuple[GrammarSpec | None, bool]:
    """Return the language of an answer that may call tools, and whether calls are part of it.

    Raises:
        RequestError: a call must be made, and there is no language of calls.
    """
    tools, choice = conversation.tools, conversation.tool_choice
    if not tools or choice.mode == "none":
        return asked, False
    if choice.mode != "auto":
        calls = None if parser is None else parser.structure(tools, choice)
        if calls is None:
            raise RequestError(
                f"tool_choice asks for a call ({choice.mode}), which the parser of this server "
                'cannot make certain; use "auto", or start it with another tool-call parser',
                param="tool_choice",
                code="unsupported_parameter",
            )
        return _of_tools(calls), True
    if asked is not None:
        must = ToolChoice("required", parallel=choice.parallel)
        calls = None if parser is None else parser.structure(tools, must)
        return (asked, False) if calls is None else (_either(calls, asked), True)
    if not any(tool.strict for tool in tools):
        return None, False
    calls = None if parser is None else parser.structure(tools, choice)
    return (None, False) if calls is None else (_of_tools(calls), True)


def _of_tools(calls: GrammarSpec) -> GrammarSpec:
    return msgspec.structs.replace(calls, field="tools", closed=True)


def _either(calls: GrammarSpec, asked: GrammarSpec) -> GrammarSpec:
    """Return the language of calls, or an answer as it was asked for."""
    forms: Mapping[str, Any] = {
        "json_schema": lambda: {"type": "json_schema", "json_schema": json.loads(asked.text)},
        "json_object": lambda: {"type": "json_schema", "json_schema": {"type": "object"}},
        "regex": lambda: {"type": "regex", "pattern": asked.text},
        "ebnf": lambda: {"type": "grammar", "grammar": asked.text},
    }
    if asked.kind not in forms:
        raise RequestError(
            f"{asked.field} beside tools is not supported for {asked.kind}; use a JSON schema, a "
            "regex or a grammar, or send no tools",
            param=asked.field,
            code="unsupported_parameter",
        )
    both = [json.loads(calls.text)["format"], forms[asked.kind]()]
    tag = {"type": "structural_tag", "format": {"type": "or", "elements": both}}
    return GrammarSpec("structural_tag", json.dumps(tag), closed=asked.closed, field=asked.field)


def text_format(value: Any, place: str = "text.format") -> GrammarSpec | None:
    """Return the language of `text.format`, where a schema stands beside its type.

    Raises:
        RequestError: the format is not as needed.
    """
    kind = _type_of(value, ("text", "json_object", "json_schema"), place)
    if kind == "json_schema":
        schema = _object(value, "schema", place)
        return _schema(schema, bool(value.get("strict")), f"{place}.schema")
    return GrammarSpec("json_object", field=place) if kind == "json_object" else None


def output_format(value: Any, place: str) -> GrammarSpec:
    """Return the language of the messages API's format: JSON of its schema, and nothing beside.

    Raises:
        RequestError: the format is not as needed.
    """
    _type_of(value, ("json_schema",), place)
    return _schema(_object(value, "schema", place), True, f"{place}.schema")


def _of_format(value: Any) -> GrammarSpec | None:
    place = "response_format"
    kind = _type_of(value, FORMATS, place)
    if kind == "text":
        return None
    if kind == "json_object":
        return GrammarSpec("json_object", field=place)
    if kind == "structural_tag":
        return GrammarSpec("structural_tag", json.dumps(value), field=place)
    inner = _object(value, "json_schema", place)
    place = f"{place}.json_schema"
    schema = _object(inner, "schema", place) if "schema" in inner else {"type": "object"}
    return _schema(schema, bool(inner.get("strict")), f"{place}.schema")


def _type_of(value: Any, types: Sequence[str], place: str) -> str:
    """Return the type of a format, which is one of `types`."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in types:
        raise RequestError(
            f"{place} is {shorten(value)}, needed is an object whose type is one of "
            f"{', '.join(types)}; correct it",
            param=f"{place}.type" if isinstance(value, dict) else place,
        )
    return str(kind)


def _object(value: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    inner = value.get(name)
    if isinstance(inner, dict):
        return inner
    what = "an object with a schema" if name == "json_schema" else "a JSON schema, an object"
    raise RequestError(
        f"{place}.{name} is {shorten(inner)}, needed is {what}; correct it", param=f"{place}.{name}"
    )


def _members(outputs: Any) -> dict[str, Any]:
    if not isinstance(outputs, dict) or not set(outputs) <= set(EXTENSIONS):
        raise RequestError(
            f"structured_outputs is {shorten(outputs)}, needed is an object with one of "
            f"{', '.join(EXTENSIONS)}; correct it",
            param="structured_outputs",
        )
    return {name: value for name, value in outputs.items() if value not in (None, False)}


def _of_extension(kind: GrammarKind, value: Any, field: str) -> GrammarSpec:
    if kind == "json_object":
        return GrammarSpec(kind, field=field)
    if kind in ("regex", "ebnf"):
        if isinstance(value, str) and value:
            return GrammarSpec(kind, value, field=field)
        raise RequestError(
            f"{field} is {shorten(value)}, needed is a text; correct it", param=field
        )
    if isinstance(value, str) and kind != "choice":  # vLLM takes the schema's text too
        return GrammarSpec(kind, value, field=field, closed=True)
    if kind == "json_schema":
        return _schema(value, True, field)
    return GrammarSpec(kind, json.dumps(value), field=field)


def _schema(schema: Any, closed: bool, field: str) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema), closed=closed, field=field)
