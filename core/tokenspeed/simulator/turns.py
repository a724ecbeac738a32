"""Reads traces of sessions whose lines hold what each turn adds, as AIPerf writes them.

A line is {"session_id", "input_length", "output_length", "hash_ids"}, and {"timestamp"} in ms of a
session's first, {"delay"} in ms of the others. Prompts go on from the answers before them, so a
turn's prompt is all that was sent and answered, and what it adds. The ids of the first line say
what sessions share; blocks behind it are the session's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.simulator.limits import MAX_ID, MAX_TOKENS, seconds, whole_number
from tokenspeed.simulator.trace import Conversation, Trace, Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    Join = Callable[[list[int]], tuple[tuple[int, int], ...]]


def turns_of(
    lines: list[dict[str, Any]], name: str, *, block_tokens: int, service_s: float, join: Join
) -> Trace:
    """Make a trace of parsed lines.

    Args:
        join: makes runs of ids.
    Raises:
        ConfigError: a number is out of range.
    """
    sessions: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        sessions.setdefault(str(line["session_id"]), []).append(line)
    first_own = 1 + max((i for line in lines for i in line["hash_ids"]), default=0)
    conversations = []
    for rows in sessions.values():
        shared = rows[0]["hash_ids"][: rows[0]["input_length"] // block_tokens]
        turns: list[Turn] = []
        tokens = 0
        for row in rows:
            tokens += whole_number("input_length", row["input_length"], 1, MAX_TOKENS)
            whole_number("tokens of a prompt", tokens, 1, MAX_TOKENS)
            num_own = tokens // block_tokens - len(shared)
            own = ((first_own, num_own),) if num_own else ()
            output = max(1, whole_number("output length", row["output_length"], 0, MAX_TOKENS))
            pause_s = seconds("delay", row.get("delay", 0.0), unit_s=1e-3)
            turns.append(Turn(tokens, output, service_s, pause_s, (*join(shared), *own)))
            tokens += output
        first_own = whole_number("id", first_own + tokens // block_tokens + 1, 0, MAX_ID)
        start_s = seconds("timestamp", rows[0].get("timestamp", 0.0), unit_s=1e-3)
        conversations.append(Conversation(tuple(turns), start_s, is_named=True))
    return Trace(name, block_tokens, tuple(conversations))
