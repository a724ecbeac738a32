"""A client that sums its conversation up asks in a session of its own, a child of the one it sums.

Claude Code does it under the same name, with the same tools and the same system prompt; Codex says
so in a header; OpenCode quotes the session in one text; Qwen Code asks like a next turn, but for
the form of a summary.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.agent_clients import (
    CLAUDE_CODE,
    CODEX,
    OPENCODE,
    QWEN_CODE,
    ClaudeCode,
    OpenCode,
)
from tests.support.clients import FINAL, Agents
from tests.support.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.slow
WINDOW_TOKENS, PERCENT = 100_000, 50
"""Its first turns fit below, and a session with all of its tool calls does not."""
TAIL_TOKENS = 16
"""Of a prompt: what ends it where an answer is to begin."""
SUMS = ("prompts", "cached_tokens", "created_tokens", "recomputed_tokens")


class SmallWindow(ClaudeCode):
    """Claude Code for a model with a small context: it compacts between two tool calls."""

    def environ(self, url: str) -> Mapping[str, str]:
        return {
            **super().environ(url),
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(WINDOW_TOKENS),
            "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": str(PERCENT),
        }


class SmallOpenCode(OpenCode):
    """OpenCode for a model with a small context: its second tool call is too much."""

    def files(self, url: str) -> Mapping[str, str]:
        path, text = next(iter(super().files(url).items()))
        config = json.loads(text)
        (model,) = config["provider"]["local"]["models"].values()
        model["limit"] = {"context": 39_000, "output": 8_000}
        return {path: json.dumps(config)}


def family(agents: Agents) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sums of the session and of its one child; check how they are related."""
    parts = {
        one["session"]: one for one in agents.server.call("/v1/engine/state").json()["sessions"]
    }
    (name,) = (name for name, one in parts.items() if not one["parent"])
    child = parts.pop(f"{name}:compaction")
    assert (child["parent"], child["root"]) == (name, name)
    assert list(parts) == [name]
    return parts[name], child


def test_a_compaction_that_was_asked_for_is_a_child_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    assert CLAUDE_CODE.command
    with Agents(tmp_path, [CLAUDE_CODE], FAMILIES["strips"]) as agents:
        session = agents.session(CLAUDE_CODE)
        assert session.ask(agents.prompt(CLAUDE_CODE)) == FINAL
        session.look()
        turns = len(session.served)
        session.ask("/compact", goes_on=True)
        session.look()
        asked = session.served[turns:]
        assert asked, session.said
        main, child = family(agents)
        assert (main["prompts"], child["prompts"]) == (turns, len(asked)), session.shown
        # Copied on write: it costs what it adds to the prompt of the session's last turn.
        last = session.served[turns - 1]
        assert asked[0].cached >= len(last.prompt) - TAIL_TOKENS, session.shown
        assert child["cached_tokens"] == sum(one.cached for one in asked)

        session.ask("Is it all done?", goes_on=True)
        session.look()
        main, child = family(agents)
        rest = len(session.served) - turns - len(asked)
        assert rest > 0
        assert (main["prompts"], child["prompts"]) == (turns + rest, len(asked)), session.shown


def test_a_compaction_between_two_tool_calls_is_a_child(tmp_path: Path) -> None:
    client = SmallWindow(CLAUDE_CODE.program, CLAUDE_CODE.answers)
    assert client.command
    with Agents(tmp_path, [client], FAMILIES["strips"]) as agents:
        session = agents.session(client)
        session.ask(agents.prompt(client))
        session.look()
        longest = max(len(one.prompt) for one in session.served)
        assert longest > WINDOW_TOKENS * PERCENT // 100, session.shown
        main, child = family(agents)
        assert child["prompts"] > 0
        assert main["prompts"] + child["prompts"] == len(session.served)
        state = agents.server.call("/v1/engine/state").json()
        (root,) = state["roots"]
        assert all(root[name] == main[name] + child[name] for name in SUMS), "one family"


def test_codex_compacts_in_a_child(tmp_path: Path) -> None:
    assert CODEX.command
    with Agents(tmp_path, [CODEX], FAMILIES["strips"]) as agents:
        session = agents.session(CODEX)
        # Without tool calls: once summed up, the tests' model would begin with its first one again.
        session.ask("Nothing is to be done.")
        session.look()
        (first,) = session.served
        for path, text in CODEX.files(agents.url).items():
            session.write(path, f"model_auto_compact_token_limit = {len(first.prompt)}\n{text}")
        session.ask("Is it all done?", goes_on=True)
        session.look()
        main, child = family(agents)
        assert (main["prompts"], child["prompts"]) == (2, 1), session.shown


def test_opencode_compacts_in_a_child(tmp_path: Path) -> None:
    client = SmallOpenCode(OPENCODE.program, OPENCODE.answers)
    assert client.command
    with Agents(tmp_path, [client], FAMILIES["strips"]) as agents:
        session = agents.session(client)
        session.ask(agents.prompt(client))
        session.look()
        main, child = family(agents)
        assert child["prompts"] > 0
        assert main["prompts"] + child["prompts"] == len(session.served), session.shown


def test_qwen_code_compacts_in_a_child_of_the_session_that_it_resumed(tmp_path: Path) -> None:
    assert QWEN_CODE.command
    with Agents(tmp_path, [QWEN_CODE], FAMILIES["strips"]) as agents:
        session = agents.session(QWEN_CODE)
        session.ask(agents.prompt(QWEN_CODE))
        # Resumed, it leaves the date out of its first message: that begins another session.
        session.ask("Is it all done?", goes_on=True)
        session.look()
        turns = len(session.served)
        session.ask("/compress", goes_on=True)
        session.look()
        parts = {
            one["session"]: one for one in agents.server.call("/v1/engine/state").json()["sessions"]
        }
        (child,) = (one for name, one in parts.items() if name.endswith(":compaction"))
        main = parts[child["parent"]]
        assert child["session"] == f"{main['session']}:compaction"
        assert child["root"] == main["root"]
        # It asks twice: the tests' model writes no summary.
        assert child["prompts"] == len(session.served) - turns == 2, session.shown
        assert main["prompts"] == 1
