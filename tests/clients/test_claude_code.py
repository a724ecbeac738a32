"""Two sessions of Claude Code share their tools and their system prompt, token for token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.agent_clients import CLAUDE_CODE
from tests.support.clients import FINAL, Agents
from tests.support.engine_record import shared_tokens
from tests.support.families import FAMILIES

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow
USERS = {"strips": "<|im_start|>user\n", "channels": "<|start|>user<|message|>"}
"""What begins a user's message."""


@pytest.mark.parametrize("family", USERS)
def test_sessions_with_other_first_prompts_share_all_before_them(
    tmp_path: Path, family: str
) -> None:
    assert CLAUDE_CODE.command
    with Agents(tmp_path, [CLAUDE_CODE], FAMILIES[family]) as agents:
        session = agents.session(CLAUDE_CODE)
        prompt = agents.prompt(CLAUDE_CODE)
        assert session.ask(prompt) == FINAL
        session.look()
        first = session.served[0]
        assert session.ask(f"Something else altogether, in other words: {prompt}") == FINAL
        session.look()
        second = session.served[len(session.served) // 2]
        text = agents.tokenizer.decode(first.prompt.tolist(), skip_special_tokens=False)
        head = text[: text.index(USERS[family])]
        shared = shared_tokens(first.prompt, second.prompt)
        assert '"name": "Bash"' in head, "the tools stand before the user"
        assert "x-anthropic-billing-header" not in text
        assert shared >= len(agents.tokenizer.encode(head, add_special_tokens=False).ids)
        assert second.cached == shared < len(first.prompt)
