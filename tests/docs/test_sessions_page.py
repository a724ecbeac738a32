"""docs/sessions.md names every rule in its order, every reason, every header that is read."""

from __future__ import annotations

import re

from tests.support.source_tree import ROOT

from tokenspeed.builtin import CLIENT_RULES
from tokenspeed.config.schema import ServeConfig
from tokenspeed.server.conversation.identity import AGENTS, CODEX_METADATA
from tokenspeed.server.conversation.sessions import MAX_SESSIONS
from tokenspeed.server.conversation.turn_memory import TURN_BYTES
from tokenspeed.server.metrics import REFUSALS

PAGE = (ROOT / "docs" / "sessions.md").read_text(encoding="utf-8")


def rows(title: str) -> list[str]:
    """Return the first cells of a section's table."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_every_rule_has_its_row_in_the_order_in_which_they_run() -> None:
    assert rows("Client rules") == list(CLIENT_RULES)


def test_every_reason_has_its_row() -> None:
    assert rows("Continued turns") == list(REFUSALS)


def test_every_header_is_named() -> None:
    names = {name for agent in AGENTS for name in (agent.root, agent.child, agent.parent) if name}
    shown = {name.lower() for name in re.findall(r"`([A-Z][\w-]+-[\w-]+)`", PAGE)}
    assert shown == {*names, CODEX_METADATA}


def test_numbers_are_those_of_the_code() -> None:
    assert f"| {ServeConfig().turn_memory_mib} MiB in each API process |" in PAGE
    assert f"{TURN_BYTES} bytes" in PAGE
    assert f"{MAX_SESSIONS:,} sessions" in PAGE
