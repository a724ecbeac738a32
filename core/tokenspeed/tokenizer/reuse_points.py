"""Where a later turn of a conversation may start again: up to three places in a chat prompt.

Hybrid models keep snapshots of a recurrent state at single positions, so the places must be named
before the prompt is computed. Templates change what lies behind the place where a turn is appended
(they strip the thinking of earlier answers), so the end of the prompt is not one of them:

    <system, tools> | <earlier turns> | <last user message> | <head of the answer>
                    1                 2                     3

While the answer to the last user message goes on over tool calls, the message's end takes the place
of its beginning: a new user message makes templates change everything behind it.
Found by rendering shorter or altered conversations and comparing texts: no template is understood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.tokenizer.chat import ChatTemplate, Message

MAX_REUSE_POINTS = 3
_OTHER = "\x02"
"""Content that no conversation begins a message with."""


def reuse_offsets(
    template: ChatTemplate, messages: Sequence[Message], text: str, **variables: Any
) -> tuple[int, ...]:
    """Return up to three increasing character offsets inside `text`.

    Args:
        text: what the template made of the messages, with the head of the answer.
        variables: as it was rendered with.
    """
    roles = [message["role"] for message in messages]
    first = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
    shorter: list[list[Message]] = [list(messages)]
    if "user" in roles:
        last = len(roles) - 1 - roles[::-1].index("user")
        is_last = last == len(roles) - 1
        shorter.append(
            [*messages[:last], {**messages[last], "content": _OTHER}]
            if is_last
            else list(messages[: last + 1])
        )
    if first < len(roles):
        shorter.append([*messages[:first], {**messages[first], "content": _OTHER}])
    offsets = {_shared(text, _rendered(template, item, variables)) for item in shorter}
    return tuple(sorted(offset for offset in offsets if 0 < offset < len(text)))


def _rendered(template: ChatTemplate, messages: list[Message], variables: dict[str, Any]) -> str:
    try:
        return template.render(messages, add_generation_prompt=False, **variables)
    except RequestError:  # a template may refuse a shorter conversation: then there is no point
        return ""


def _shared(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
