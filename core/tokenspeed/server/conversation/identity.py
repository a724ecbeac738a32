"""Which session a request belongs to, and which one that descends from, as its client says it.

Agents name both in headers of their own. A child is a sub-agent or a compaction call: it has a name
of its own and a parent. Values are clients' texts: cut, never trusted to exist.
Source: header names as NVIDIA Dynamo's front end reads them (docs, "Identify agent sessions"), and
as the clients send them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.server.conversation.compaction import compaction_of
from tokenspeed.server.conversation.term_fields import MAX_SESSION_CHARS

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_METADATA_CHARS = 16_384


@dataclass(frozen=True, slots=True)
class Identity:
    """A session and its family.

    Args:
        session: its name; "": none.
        parent: session that started it; "": none, or not told.
        root: session that the whole family descends from; "": not told, else itself.
    """

    session: str = ""
    parent: str = ""
    root: str = ""


@dataclass(frozen=True, slots=True)
class AgentHeaders:
    """How one agent names sessions.

    Args:
        root: of its main session; there where the agent is.
        child: of a child of it; "": children are named by `root` like others.
        parent: of the session that started this one.
        is_child_scoped: names of children are unique within their root only.
    """

    root: str
    child: str = ""
    parent: str = ""
    is_child_scoped: bool = False


AGENTS = (
    AgentHeaders("x-dynamo-session-id", parent="x-dynamo-parent-session-id"),
    AgentHeaders("x-session-id", parent="x-parent-session-id"),
    AgentHeaders("x-session-affinity"),
    AgentHeaders("session-id", "thread-id", "x-codex-parent-thread-id"),
    AgentHeaders("thread-id", parent="x-codex-parent-thread-id"),
    AgentHeaders(
        "x-claude-code-session-id",
        "x-claude-code-agent-id",
        "x-claude-code-parent-agent-id",
        is_child_scoped=True,
    ),
)
"""The first agent whose header is there counts: any client that says so itself, OpenCode (twice),
Codex (twice), Claude Code."""
CODEX_METADATA = "x-codex-turn-metadata"


def by_headers(headers: Mapping[str, str]) -> Identity:
    """Return what the headers tell; an empty Identity where they tell nothing."""
    for agent in AGENTS:
        if root := _value(headers, agent.root):
            found = _of(agent, root, headers)
            return _compacting(found, headers) if "thread-id" in _names(agent) else found
    return Identity()


def _of(agent: AgentHeaders, root: str, headers: Mapping[str, str]) -> Identity:
    child, parent = _value(headers, agent.child), _value(headers, agent.parent)
    if agent.is_child_scoped:
        child, parent = _scoped(child, root), _scoped(parent, root)
        parent = (parent or root) if child not in ("", root) else ""
    session = child or root
    has_root = bool(agent.child) and session != root
    return Identity(session, parent if parent != session else "", root if has_root else "")


def _compacting(found: Identity, headers: Mapping[str, str]) -> Identity:
    """Tell Codex's compaction calls from its turns; its metadata says the parent too."""
    metadata = _metadata(headers)
    parent = found.parent or _cut(metadata.get("parent_thread_id"))
    if parent == found.session:
        parent = ""
    if metadata.get("request_kind") != "compaction":
        return Identity(found.session, parent, found.root)
    return Identity(compaction_of(found.session), found.session, found.root)


def _metadata(headers: Mapping[str, str]) -> dict[str, Any]:
    text = headers.get(CODEX_METADATA, "")
    if not text or len(text) > _MAX_METADATA_CHARS:
        return {}
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _names(agent: AgentHeaders) -> tuple[str, str]:
    return agent.root, agent.child


def _scoped(name: str, root: str) -> str:
    return _cut(f"{root}/{name}") if name not in ("", root) else name


def _value(headers: Mapping[str, str], name: str) -> str:
    return _cut(headers.get(name)) if name else ""


def _cut(value: object) -> str:
    return value.strip()[:MAX_SESSION_CHARS] if isinstance(value, str) else ""
