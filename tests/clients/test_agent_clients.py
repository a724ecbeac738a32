"""Unmodified clients of coding agents finish a session, and each turn goes on from the one before.

A session is three tool calls and a text; where the client can go on with it, one more of each. In
every family of chat templates, each turn takes the whole turn before it from the cache: its prompt
and its output. That is read from the engine's record; what the client was told must agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.agent_clients import AGENTS, AIDER, MINI_SWE_AGENT, QWEN_CODE
from tests.support.clients import (
    FINAL,
    LAST,
    MODEL,
    MORE,
    NUM_STEPS,
    Agents,
    Client,
    shell_calls,
)
from tests.support.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_TURNS = NUM_STEPS + 3
"""Of a session that goes on."""
SDKS = {
    kind: Client(
        ("small/bin/python", str(Path(__file__).with_name("sdk_session.py")), kind),
        shell_calls("shell", "command"),
    )
    for kind in ("openai-chat", "openai-responses", "anthropic", "openai-agents")
}


FAST = "strips"
"""The family that the default suite runs."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[] if name == FAST else pytest.mark.slow) for name in FAMILIES
    ],
)
def agents(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Agents]:
    assert SDKS["anthropic"].command
    folder = tmp_path_factory.mktemp(request.param)
    clients = [*AGENTS.values(), *SDKS.values()]
    with Agents(folder, clients, FAMILIES[request.param]) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chains"),
    [
        ("claude-code", (NUM_TURNS,)),
        ("codex", (NUM_TURNS,)),
        ("opencode", (1, NUM_TURNS)),  # it asks for a title first
    ],
)
def test_an_agent_goes_on_from_every_turn(
    agents: Agents, name: str, chains: tuple[int, ...]
) -> None:
    session = agents.session(AGENTS[name])
    assert session.ask(agents.prompt(AGENTS[name])) == FINAL
    session.assert_steps(NUM_STEPS)
    assert session.ask(MORE, goes_on=True) == LAST
    session.assert_steps(NUM_STEPS + 1)
    session.assert_continued(*chains)


@pytest.mark.slow
def test_qwen_code_goes_on_until_it_is_resumed(agents: Agents) -> None:
    """Resumed, it leaves the date out of its first message; what follows is written anew."""
    session = agents.session(QWEN_CODE)
    assert session.ask(agents.prompt(QWEN_CODE)) == FINAL
    session.assert_steps(NUM_STEPS)
    assert session.ask(MORE, goes_on=True) == LAST
    session.assert_steps(NUM_STEPS + 1)
    session.assert_continued(NUM_STEPS + 1, 2)
    first, resumed = session.served[0], session.served[NUM_STEPS + 1]
    assert resumed.cached < len(first.prompt)
    if not agents.family.puts_tools_last:
        assert resumed.cached > 0.99 * len(first.prompt)


def test_mini_swe_agent_goes_on_from_every_turn(agents: Agents) -> None:
    session = agents.session(MINI_SWE_AGENT)
    assert session.ask(agents.prompt(MINI_SWE_AGENT)) == FINAL
    session.assert_steps(NUM_STEPS)
    session.assert_continued(NUM_STEPS + 1)


@pytest.mark.slow
def test_aider_computes_only_what_it_moved(agents: Agents) -> None:
    """Files and its reminder stand before the user's last message, and move on with each turn."""
    session = agents.session(AIDER)
    assert session.ask(agents.prompt(AIDER)) == FINAL
    session.assert_steps(NUM_STEPS)
    assert session.done.stdout.count("Applied edit to steps.txt") == NUM_STEPS
    session.assert_continued(*[1] * (NUM_STEPS + 1), wire_tells=False)
    assert [one.end for one in session.served[1:]] == ["content"] * NUM_STEPS


@pytest.mark.parametrize(
    "kind",
    [
        "openai-chat",
        "anthropic",
        pytest.param("openai-responses", marks=pytest.mark.slow),
        pytest.param("openai-agents", marks=pytest.mark.slow),
    ],
)
def test_a_vendors_library_goes_on_from_every_turn(agents: Agents, kind: str) -> None:
    session = agents.session(SDKS[kind])
    session.run(agents.url, MODEL, agents.prompt(SDKS[kind]), MORE)
    said = [line.strip() for line in session.done.stdout.splitlines()]
    assert said == [FINAL, LAST], session.said
    session.assert_steps(NUM_STEPS + 1)
    session.assert_continued(NUM_TURNS)
