"""Client noise does not cost cached tokens; each rule can be switched off, and is counted."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.chats import line
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROMPT = "You are a coding agent. " * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("noise")
    write_scripted_model(made / "model", script="Done.")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(folder / "model", folder) as running:
        yield running


def system(rng: random.Random) -> dict[str, Any]:
    """Claude Code's system prompt of one session, as blocks."""
    blocks = [{"type": "text", "text": text} for text in (line(rng), PROMPT)]
    return {"role": "system", "content": blocks}


def tokens(server: ServerProcess, messages: list[dict[str, Any]]) -> list[int]:
    body = {"messages": messages, "add_generation_prompt": False}
    found: list[int] = server.call("/tokenize", body).json()["tokens"]
    return found


def test_two_sessions_with_other_first_words_share_their_system_prompt(
    server: ServerProcess,
) -> None:
    rng = random.Random(6)
    cached = []
    for text in ("Fix the bug.", "Write a page."):
        messages = [system(rng), {"role": "user", "content": text}]
        body = {"model": "model", "messages": messages, "max_tokens": 2}
        usage = server.call("/v1/chat/completions", body).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0
    assert cached[1] >= len(PROMPT)
    assert server.metric('tokenspeed_client_rule_changes_total{rule="core/attribution"}') == 2
    assert server.metric('tokenspeed_client_rule_changes_total{rule="core/order"}') == 0


def test_a_message_reads_the_same_as_string_and_as_blocks(server: ServerProcess) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    forms: list[Any] = [
        "one\ntwo",
        [{"type": "text", "text": "one\ntwo", **mark}],
        [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        [{"type": "text", "text": "one\ntwo"}, {"type": "text", "text": "", **mark}],
    ]
    found = {str(tokens(server, [{"role": "user", "content": form}])) for form in forms}
    assert len(found) == 1


def test_rules_are_switched_off_by_name(folder: Path, tmp_path: Path) -> None:
    with ServerProcess(folder / "model", tmp_path, "--client-rules", "all,-attribution") as server:
        heads = [tokens(server, [system(random.Random(seed))]) for seed in (7, 8)]
        assert heads[0] != heads[1]


def test_a_rule_that_is_not_offered_ends_the_start(folder: Path) -> None:
    flags = ("--plugins", "sdk", "--port", "0", "--client-rules", "all,-ordre")
    done = run_cli("serve", str(folder / "model"), *flags)
    assert done.returncode == 5
    assert "client_rules: 'ordre' is not offered" in done.stderr
    assert "core/order" in done.stderr
