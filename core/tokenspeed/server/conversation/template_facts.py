"""What client rules may know of a chat template, found by rendering a few messages once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.client_rule import TemplateFacts
from tokenspeed.errors import RequestError

if TYPE_CHECKING:
    from tokenspeed.tokenizer.chat import ChatTemplate

_PROBES = (
    ("system", "user", "system", "assistant", "user"),
    ("system", "user", "assistant", "system", "user"),
)


def facts_of(template: ChatTemplate | None) -> TemplateFacts:
    """Try a template out; a model without one has no chats to tell of."""
    return TemplateFacts(
        keeps_system_in_place=template is None
        or all(_keeps_order(template, roles) for roles in _PROBES)
    )


def _keeps_order(template: ChatTemplate, roles: tuple[str, ...]) -> bool:
    """Say whether the contents of messages with these roles come out in their order."""
    contents = [f"probe{index}place" for index in range(len(roles))]
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
    try:
        text = template.render(messages)
    except RequestError:
        return False
    places = [text.find(content) for content in contents]
    return places[0] >= 0 and places == sorted(places)
