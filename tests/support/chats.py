"""Random conversations as clients send them: agents' turns, tools, reminders, odd texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.conversation import Conversation, Message, Tool, ToolCall

if TYPE_CHECKING:
    import random

WORDS = ("", "fix it", " spaced ", "line\nline", "caf\u00e9", "<system-reminder>", '{"a": 1}')
LINE = "x-anthropic-billing-header: cc_version=2.1.117.{}; cc_entrypoint=cli; cch={};"
"""Claude Code's attribution line, as public reports show it."""


def line(rng: random.Random) -> str:
    """Return an attribution line of some session."""
    return LINE.format(f"{rng.randrange(4096):03x}", f"{rng.randrange(1 << 20):05x}")


def texts(rng: random.Random, most: int = 3) -> tuple[str, ...]:
    """Return the blocks of a message."""
    return tuple(rng.choice(WORDS) for _ in range(rng.randint(0, most)))


def schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return a JSON schema of an object, with nested ones, enums and defaults."""
    names = rng.sample(["path", "mode", "type", "default", "items", "zone", "arg"], 3)
    inner: list[dict[str, Any]] = [
        {"type": "string", "description": "text", "enum": ["b", "a"]},
        {"type": "object", "default": {"z": 1, "a": {"y": [], "b": 2}}},
        {"type": "array", "items": {"description": "d", "type": "integer", "x-own": {"b": 1}}},
    ]
    if depth:
        inner[0] = schema(rng, depth - 1)
    found = {"type": "object", "properties": dict(zip(names, inner, strict=True))}
    return {**found, "required": names[:2], "additionalProperties": False}


def tools(rng: random.Random, count: int) -> tuple[Tool, ...]:
    """Return tools of different names."""
    names = rng.sample(["bash", "read", "edit", "search", "plan", "web"], count)
    return tuple(Tool(name, f"does {name}", schema(rng)) for name in names)


def shuffled(rng: random.Random, value: Any) -> Any:
    """Return JSON with the keys of its objects in another order."""
    if isinstance(value, list):
        return [shuffled(rng, item) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    rng.shuffle(keys)
    return {key: shuffled(rng, value[key]) for key in keys}


def chat(rng: random.Random) -> Conversation:
    """Return a conversation of up to a dozen messages."""
    messages = []
    if rng.random() < 0.8:
        head = (line(rng),) if rng.random() < 0.5 else ()
        messages.append(Message("system", (*head, *texts(rng))))
    for index in range(rng.randint(1, 10)):
        role = rng.choice(("user", "assistant", "tool", "system"))
        if role == "assistant":
            arguments = json.dumps({"n": index, "text": rng.choice(WORDS)})
            calls = (ToolCall(f"call_{index}", "bash", arguments),) * rng.randint(0, 1)
            messages.append(Message("assistant", texts(rng), rng.choice(WORDS), calls))
        elif role == "tool":
            messages.append(Message("tool", texts(rng), tool_call_id=f"call_{index - 1}"))
        else:
            messages.append(Message(role, texts(rng)))
    offered = tools(rng, rng.randint(0, 4))
    if offered and rng.random() < 0.3:
        marked = {**offered[0].parameters, "cache_control": {"type": "ephemeral"}}
        offered = (Tool("marked", "", marked), *offered[1:])
    return Conversation(tuple(messages), offered)
