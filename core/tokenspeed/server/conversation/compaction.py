"""Whether a chat sums a session up, as the chat itself tells; `sessions.py` asks.

    lost tools   system, tools | user, answer, result      ->  no tools | user, answer, result, ask
    beside       system, tools | user, answer, result -> answer         | user, answer, result, ask
    marked       goes on like a turn, and its last words ask for the form of a summary (Qwen Code)
    quoted       no tools, nothing but one text that quotes what the session's user said (OpenCode)

The first two begin with all of the session's last turn. A marked one need not: its client, started
anew, writes its first message anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.server.conversation.term_fields import MAX_SESSION_CHARS

if TYPE_CHECKING:
    from tokenspeed.server.conversation.cleaned import Chat

COMPACTION = ":compaction"
"""Ends the name of the session that compacts another one."""
SUMMARY_MARKS = ("<state_snapshot>",)
"""What summaries are written in. A summary itself, sent back, has its mark at its head."""
_ENDING_CHARS = 64
"""Where the last words of a request are looked for its mark."""
_QUOTED_CHARS = 64
"""Of what a user said: so much is remembered."""


def compaction_of(session: str) -> str:
    """Name the session that compacts another one."""
    return session[: MAX_SESSION_CHARS - len(COMPACTION)] + COMPACTION


def compacted_by(session: str) -> str:
    """Return the session that `session` compacts; itself where it compacts none."""
    return session.removesuffix(COMPACTION)


def asks_for_summary(chat: Chat) -> bool:
    """Whether a chat's last words ask for a summary of what stands before them."""
    if not chat.has_answer:
        return False
    last = chat.conversation.messages[-1]
    if last.role != "user" or not last.content:
        return False
    return any(mark in last.content[-1][-_ENDING_CHARS:] for mark in SUMMARY_MARKS)


def quotable(chat: Chat) -> tuple[str, ...]:
    """Return how the first and the latest text of a chat's user begin."""
    said = [one.text[:_QUOTED_CHARS] for one in chat.conversation.messages if one.role == "user"]
    return tuple(dict.fromkeys(text for text in (*said[:1], *said[-1:]) if text.strip()))


def quotes(chat: Chat, said: tuple[str, ...]) -> bool:
    """Whether a chat is one text without tools that has something in it of what was said."""
    asked = [one for one in chat.conversation.messages if one.role != "system"]
    if chat.conversation.tools or len(asked) != 1 or asked[0].role != "user":
        return False
    text = asked[0].text
    return any(one in text and not text.startswith(one) for one in said)
