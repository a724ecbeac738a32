"""Tools of a responses request: functions, those in namespaces, and those that the vendor runs.

The model knows one flat row of names; a function of a namespace is called NAMESPACE__NAME there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.conversation import Tool
from tokenspeed.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenspeed.server.responses.schemas import ResponseTool

FUNCTION, NAMESPACE = "function", "namespace"


def flat_name(namespace: str | None, name: str) -> str:
    """Return how the model calls a function."""
    return f"{namespace}__{name}" if namespace else name


class ToolTable:
    """The tools of one request.

    Attributes:
        tools: what the model is told of.
        special: types of those that are no plain functions; namespaces are among them.
    """

    def __init__(self, tools: Sequence[ResponseTool]) -> None:
        self.special: list[str] = []
        self._places: dict[str, tuple[str, str]] = {}
        self.tools = tuple(self._read(tools, "", "tools"))

    def place_of(self, name: str) -> tuple[str, str]:
        """Return (namespace, name) of a function that the model called; "" is no namespace."""
        return self._places.get(name, ("", name))

    def _read(self, tools: Sequence[ResponseTool], namespace: str, place: str) -> Iterator[Tool]:
        for index, tool in enumerate(tools):
            if tool.type == FUNCTION:
                yield self._function(tool, namespace, f"{place}.{index}")
            elif tool.type == NAMESPACE and not namespace:
                self.special.append(NAMESPACE)
                yield from self._read(tool.tools, tool.name, f"{place}.{index}.tools")
            else:
                self.special.append(tool.type)

    def _function(self, tool: ResponseTool, namespace: str, place: str) -> Tool:
        if not tool.name:
            param = f"{place}.name"
            raise RequestError(f"{param} is missing; it is required, add it", param=param)
        name = flat_name(namespace, tool.name)
        self._places[name] = (namespace, tool.name)
        return Tool(name, tool.description or "", tool.parameters or {}, strict=bool(tool.strict))
