"""Checks of tools and of the choice among them, the same for every API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import RequestError
from tokenspeed.server.http.fields import shorten

if TYPE_CHECKING:
    from tokenspeed.contracts.conversation import Conversation


def check_tools(conversation: Conversation, *, can_parse: bool) -> None:
    """Refuse tools that cannot be called as asked.

    Args:
        can_parse: the server reads calls out of answers.
    Raises:
        RequestError: two tools of one name, a choice that names none of them, or a server that
            would show calls as text.
    """
    names = [tool.name for tool in conversation.tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RequestError(
                f"tools.{index} has the name {shorten(name)}, which another tool has; each needs "
                "a name of its own; rename it",
                param=f"tools.{index}",
            )
    choice = conversation.tool_choice
    if choice.mode in ("required", "named") and not names:
        raise RequestError(
            f"tool_choice asks for a call ({choice.mode}), but there are no tools; give tools, or "
            "omit tool_choice",
            param="tool_choice",
        )
    if choice.mode == "named" and choice.name not in names:
        raise RequestError(
            f"tool_choice names {shorten(choice.name)}, the tools are "
            f"{', '.join(map(shorten, names[:20]))}; choose one of them",
            param="tool_choice",
        )
    if names and choice.mode != "none" and not can_parse:
        raise RequestError(
            f"tools holds {len(names)} tools, but this server was started without a parser of "
            "tool calls, so a call would come as text; start it with one, or send no tools",
            param="tools",
            code="unsupported_parameter",
        )
