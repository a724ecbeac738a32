"""Checks of tools and of the choice among them, the same for every API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import RequestError
from tokenspeed.server.http.fields import shorten

if TYPE_CHECKING:
    from tokenspeed.contracts.conversation import Conversation


def check_tools(conversation: Conversation, *, refusal: str) -> None:
    """Refuse tools that cannot be called as asked.

    Args:
        refusal: why this server takes no tools that may be called, and what to do; "": it does.
    Raises:
        RequestError: two tools of one name, a choice that names none of them, or a server that
            takes none.
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
    if names and choice.mode != "none" and refusal:
        raise RequestError(
            f"tools holds {len(names)} tools, but {refusal}",
            param="tools",
            code="unsupported_parameter",
        )
