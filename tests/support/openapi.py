"""Holds answers against a server's OpenAPI document: status, content type, headers, schema."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jsonschema

if TYPE_CHECKING:
    from tests.support.apps import Reply


class Contract:
    """What a document promises.

    Args:
        document: as GET /openapi.json gives it.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._validators: dict[str, Any] = {}
        self._paths = {
            re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path)): operations
            for path, operations in document["paths"].items()
        }

    def check(self, method: str, path: str, reply: Reply) -> None:
        """Assert that an answer is one that the document has."""
        operation = self._operation(method, path)
        promised = operation["responses"].get(str(reply.status))
        assert promised is not None, f"{method} {path}: {reply.status} is not in the document"
        kind = reply.headers["content-type"].partition(";")[0]
        assert kind in promised["content"], f"{method} {path}: {kind} is not in the document"
        for name in promised.get("headers", {}):
            assert name in reply.headers, f"{method} {path}: the header {name} is missing"
        content = promised["content"][kind]
        if kind == "application/json":
            self._validate(content["schema"], reply.json())
        elif kind == "text/event-stream":
            for _, data in reply.events():
                if data != "[DONE]":
                    self._validate(_data_of(content["itemSchema"]), data)

    def accepts(self, method: str, path: str, body: Any) -> bool:
        """Say whether the document allows a body."""
        content = self._operation(method, path)["requestBody"]["content"]
        return bool(self._validator(content["application/json"]["schema"]).is_valid(body))

    def _operation(self, method: str, path: str) -> Any:
        for pattern, operations in self._paths.items():
            if pattern.fullmatch(path):
                return operations[method.lower()]
        raise AssertionError(f"{path} is not in the document")

    def _validate(self, schema: Any, value: Any) -> None:
        error = jsonschema.exceptions.best_match(self._validator(schema).iter_errors(value))
        assert error is None, f"{error.json_path}: {error.message}"

    def _validator(self, schema: Any) -> Any:
        key = repr(schema)
        if key not in self._validators:
            whole = {**schema, "components": self.document["components"]}
            self._validators[key] = jsonschema.Draft202012Validator(whole)
        return self._validators[key]


def _data_of(event: dict[str, Any]) -> Any:
    """Return the schema of an event's JSON."""
    closing, data = event["properties"]["data"]["anyOf"]
    assert closing == {"const": "[DONE]"}
    return data["contentSchema"]
