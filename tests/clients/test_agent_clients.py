"""Unmodified clients of coding agents finish a session, and each turn goes on from the one before.

A session is three tool calls and a text; where the client can go on with it, one more of each. In
every family of chat templates, each turn takes the whole turn before it from the cache: its prompt
and its output. That is read from the engine's record; what the client was told must agree.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.clients import (
    CLIENTS,
    FINAL,
    LAST,
    MODEL,
    MORE,
    NUM_STEPS,
    Agents,
    Call,
    Client,
    shell_calls,
)
from tests.support.dialogue import SAY_MARKER
from tests.support.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = {"OPENAI_API_KEY": "x"}
PAUSE = "; sleep 0.3"
"""Qwen Code now and then misses what a command printed that ends at once."""
SUBMIT = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo '{FINAL}'"
"""How mini-swe-agent's model ends a session."""
EDITS = [
    "steps.txt\n```\n" + "\n".join("123"[:step]) + "\n```\n" for step in range(1, NUM_STEPS + 1)
]
"""Files as aider's model writes them."""


def npm(name: str) -> tuple[str]:
    return (f"node_modules/.bin/{name}",)


CLAUDE = Client(npm("claude"), shell_calls("Bash", "command", description="A step"))
CODEX = Client(npm("codex"), shell_calls("exec_command", "cmd"))
OPENCODE = Client(npm("opencode"), shell_calls("bash", "command", description="A step"))
QWEN = Client(
    npm("qwen"), shell_calls("run_shell_command", "command", after=PAUSE, is_background=False)
)
MINI = Client(
    ("mini/bin/python", "-m", "minisweagent.run.mini"),
    [*shell_calls("bash", "command")[:NUM_STEPS], Call("", "bash", {"command": SUBMIT})],
)
AIDER = Client(
    ("aider/bin/python", "-m", "aider"), [text for edit in EDITS for text in (edit, edit)] + [FINAL]
)
SDKS = {
    kind: Client(
        ("sdks/bin/python", str(Path(__file__).with_name("sdk_session.py")), kind),
        shell_calls("shell", "command"),
    )
    for kind in ("openai-chat", "openai-responses", "anthropic", "openai-agents")
}
ALL = [CLAUDE, CODEX, OPENCODE, QWEN, MINI, AIDER, *SDKS.values()]


@pytest.fixture(scope="module", params=FAMILIES)
def agents(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Agents]:
    if not CLIENTS.is_dir():
        pytest.skip("the clients are not installed: make clients")
    folder = tmp_path_factory.mktemp(request.param)
    with Agents(folder, ALL, FAMILIES[request.param]) as made:
        yield made


@pytest.mark.slow
def test_claude_code_finishes_a_session(agents: Agents) -> None:
    sizes = ("OPUS", "SONNET", "HAIKU")
    environ = {
        "ANTHROPIC_BASE_URL": agents.url,
        "ANTHROPIC_AUTH_TOKEN": "x",
        "ANTHROPIC_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **{f"ANTHROPIC_DEFAULT_{size}_MODEL": MODEL for size in sizes},
    }
    session = agents.session(CLAUDE, environ=environ)
    given = ("--allowedTools", "Bash", "--output-format", "json")
    for goes_on, said, final in (((), agents.prompt(CLAUDE), FINAL), (("-c",), MORE, LAST)):
        session.run(*goes_on, "-p", said, *given)
        result = json.loads(session.last_line or "{}")
        session.assert_finished(result.get("result", ""), expected=final)
        assert not result["is_error"]
    session.assert_continued(NUM_STEPS + 3)


CODEX_CONFIG = f"""
model = "{MODEL}"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "URL/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""


@pytest.mark.slow
def test_codex_finishes_a_session(agents: Agents) -> None:
    session = agents.session(CODEX, environ=KEY)
    session.write(".codex/config.toml", CODEX_CONFIG.replace("URL", agents.url))
    given = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    session.run("exec", *given, "-o", "final.txt", agents.prompt(CODEX))
    session.assert_finished(session.read("final.txt"))
    session.run("exec", "resume", "--last", *given, "-o", "last.txt", MORE)
    session.assert_finished(session.read("last.txt"), expected=LAST)
    session.assert_continued(NUM_STEPS + 3)


@pytest.mark.slow
def test_opencode_finishes_a_session(agents: Agents) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{agents.url}/v1", "apiKey": "x"},
        "models": {MODEL: {"limit": {"context": 200_000, "output": 8_000}}},
    }
    name = f"local/{MODEL}"
    config = {"model": name, "small_model": name, "provider": {"local": provider}}
    session = agents.session(OPENCODE)
    session.write("work/opencode.json", json.dumps(config))
    session.run("run", agents.prompt(OPENCODE))
    session.assert_finished(session.last_line)
    session.run("run", "-c", MORE)
    session.assert_finished(session.last_line, expected=LAST)
    session.assert_continued(1, NUM_STEPS + 3)


@pytest.mark.slow
def test_qwen_code_finishes_a_session(agents: Agents) -> None:
    session = agents.session(
        QWEN, environ={**KEY, "OPENAI_BASE_URL": f"{agents.url}/v1", "OPENAI_MODEL": MODEL}
    )
    given = ("--auth-type", "openai", "--yolo")
    session.run(*given, "-p", agents.prompt(QWEN))
    session.assert_finished(session.last_line)
    session.run(*given, "--continue", "-p", MORE)
    session.assert_finished(session.last_line, expected=LAST)
    session.assert_continued(NUM_STEPS + 3)


def test_mini_swe_agent_finishes_a_session(agents: Agents) -> None:
    settings = ("mini.yaml", f"model.model_kwargs.api_base={agents.url}/v1")
    given = [word for text in (*settings, "model.cost_tracking=ignore_errors")
             for word in ("-c", text)]  # fmt: skip
    session = agents.session(MINI, environ={**KEY, "MSWEA_CONFIGURED": "true"})
    session.run(
        *("-m", f"openai/{MODEL}", *given, "-t", agents.prompt(MINI), "-o", "done.json"),
        *("-y", "--exit-immediately", "-l", "0"),
    )
    info = json.loads(session.read("done.json"))["info"]
    assert info["exit_status"] == "Submitted"
    session.assert_finished(info["submission"])
    session.assert_continued(NUM_STEPS + 1)


@pytest.mark.slow
def test_aider_finishes_a_session(agents: Agents) -> None:
    """It has no tools: it writes files that the answers spell, and a test is what it runs."""
    session = agents.session(AIDER, environ={**KEY, "OPENAI_API_BASE": f"{agents.url}/v1"})
    session.run(
        *("--model", f"openai/{MODEL}", "--message", agents.prompt(AIDER), "--no-git"),
        *("--yes-always", "--no-check-update", "--analytics-disable", "--no-pretty"),
        *("--no-show-model-warnings", "--auto-test", "--test-cmd", f"{SAY_MARKER}; exit 1"),
    )
    said = [line for line in session.done.stdout.splitlines() if line.strip()]
    session.assert_finished(said[-2] if said else "")
    assert session.done.stdout.count("Applied edit to steps.txt") == NUM_STEPS
    session.assert_continued(2 * NUM_STEPS + 1, wire_tells=False)


@pytest.mark.parametrize("kind", SDKS)
def test_a_vendors_library_finishes_a_session(agents: Agents, kind: str) -> None:
    client = SDKS[kind]
    session = agents.session(client)
    session.run(agents.url, MODEL, agents.prompt(client), MORE)
    session.assert_finished(session.done.stdout, expected=f"{FINAL}\n{LAST}")
    session.assert_continued(NUM_STEPS + 3)
