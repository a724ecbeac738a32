"""A client that is killed within a turn frees what it held; resumed, it goes on from the last."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.agent_clients import AGENTS, QwenCode
from tests.support.clients import FINAL, NUM_STEPS, Agents
from tests.support.engine_record import shared_tokens
from tests.support.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
NAMES = ("claude-code", "codex", "opencode", "qwen-code")
EDITS = {"qwen-code"}
"""Resumed, it leaves the date out of its first message, so the turns behind it are written anew."""
STEP_MS = 20
"""An answer takes seconds, so that a client can be killed within it."""
TIMEOUT_S = 150


class BareQwenCode(QwenCode):
    """Qwen Code without what it finds around it.

    Its usual prompt has 75,000 tokens here, and to attend to them on a busy CPU takes half a minute
    in each test before the second turn begins; these are less than half as many.
    """

    def arguments(self, url: str, text: str, *, goes_on: bool) -> tuple[str, ...]:
        return ("--bare", *super().arguments(url, text, goes_on=goes_on))


CLIENTS = {
    name: BareQwenCode(AGENTS[name].program, AGENTS[name].answers)
    if name in EDITS
    else AGENTS[name]
    for name in NAMES
}


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    clients = list(CLIENTS.values())
    assert clients[0].command
    folder = tmp_path_factory.mktemp("killed")
    with Agents(folder, clients, FAMILIES["strips"], step_ms=STEP_MS) as made:
        yield made


def wait_for(agents: Agents, is_so: Any) -> None:
    """Wait until the engine's picture of itself is as told."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so(state := agents.server.call("/v1/engine/state").json()):
        assert time.monotonic() < deadline_s, state
        time.sleep(0.05)


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_client_leaves_nothing_behind_and_hits_when_resumed(
    agents: Agents, name: str
) -> None:
    session = agents.session(CLIENTS[name], url=agents.server.url)
    process = session.start(agents.prompt(CLIENTS[name]))
    steps = session.home / "work/steps.txt"

    def is_in_second_turn(state: Any) -> bool:
        assert process.poll() is None, "it ended before it was killed"
        writes = any(20 < one["output_tokens"] < 100 for one in state["requests"])
        return writes and steps.exists() and steps.read_text() == "1\n"

    try:
        wait_for(agents, is_in_second_turn)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wait_for(agents, lambda state: not state["requests"])
    assert agents.server.call("/v1/engine/state").json()["counters"]["blocks_used"] == 0
    session.look()
    whole, killed = session.served[-2:]
    assert 0 < len(killed.output) < len(whole.output)

    assert session.ask("Go on.", goes_on=True) == FINAL
    session.assert_steps(NUM_STEPS)
    num_before = len(session.served)
    session.look()
    resumed = max(session.served[num_before:], key=lambda one: one.cached)
    goes_on = shared_tokens(whole.kept, resumed.prompt) == len(whole.kept)
    assert goes_on == (name not in EDITS), session.shown
    session.assert_nothing_is_computed_twice()
