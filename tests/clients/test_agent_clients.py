"""Unmodified clients of coding agents finish a session of three tool calls on one server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.clients import CLIENTS, FINAL, MODEL, NUM_STEPS, Agents, Client, shell_calls
from tests.support.dialogue import SAY_MARKER, hermes_call

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


CLAUDE = Client(npm("claude"), [*shell_calls("Bash", "command", description="A step"), FINAL])
CODEX = Client(npm("codex"), [*shell_calls("exec_command", "cmd"), FINAL])
OPENCODE = Client(npm("opencode"), [*shell_calls("bash", "command", description="A step"), FINAL])
QWEN = Client(
    npm("qwen"),
    [*shell_calls("run_shell_command", "command", after=PAUSE, is_background=False), FINAL],
)
MINI = Client(
    ("mini/bin/python", "-m", "minisweagent.run.mini"),
    [*shell_calls("bash", "command"), hermes_call("bash", {"command": SUBMIT})],
)
AIDER = Client(
    ("aider/bin/python", "-m", "aider"), [text for edit in EDITS for text in (edit, edit)] + [FINAL]
)
SDKS = {
    kind: Client(
        ("sdks/bin/python", str(Path(__file__).with_name("sdk_session.py")), kind),
        [*shell_calls("shell", "command"), FINAL],
    )
    for kind in ("openai-chat", "openai-responses", "anthropic", "openai-agents")
}


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    if not CLIENTS.is_dir():
        pytest.skip("the clients are not installed: make clients")
    clients = [CLAUDE, CODEX, OPENCODE, QWEN, MINI, AIDER, *SDKS.values()]
    made = Agents(tmp_path_factory.mktemp("agents"), clients)
    with made.server:
        yield made


def test_claude_code_finishes_a_session(agents: Agents) -> None:
    sizes = ("OPUS", "SONNET", "HAIKU")
    environ = {
        "ANTHROPIC_BASE_URL": agents.url,
        "ANTHROPIC_AUTH_TOKEN": "x",
        "ANTHROPIC_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **{f"ANTHROPIC_DEFAULT_{size}_MODEL": MODEL for size in sizes},
    }
    session = agents.run(
        CLAUDE,
        *("-p", agents.prompt(CLAUDE), "--allowedTools", "Bash", "--output-format", "json"),
        environ=environ,
    )
    result = json.loads(session.last_line or "{}")
    session.assert_finished(result.get("result", ""))
    assert (result["is_error"], result["num_turns"]) == (False, NUM_STEPS + 1)


CODEX_CONFIG = f"""
model = "{MODEL}"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "URL/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""


def test_codex_finishes_a_session(agents: Agents) -> None:
    session = agents.run(
        CODEX,
        *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        *("-o", "final.txt", agents.prompt(CODEX)),
        files={".codex/config.toml": CODEX_CONFIG.replace("URL", agents.url)},
        environ=KEY,
    )
    session.assert_finished(session.read("final.txt"))


@pytest.mark.slow
def test_opencode_finishes_a_session(agents: Agents) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{agents.url}/v1", "apiKey": "x"},
        "models": {MODEL: {"limit": {"context": 200_000, "output": 8_000}}},
    }
    name = f"local/{MODEL}"
    config = {"model": name, "small_model": name, "provider": {"local": provider}}
    files = {"work/opencode.json": json.dumps(config)}
    session = agents.run(OPENCODE, "run", agents.prompt(OPENCODE), files=files)
    session.assert_finished(session.last_line)


@pytest.mark.slow
def test_qwen_code_finishes_a_session(agents: Agents) -> None:
    session = agents.run(
        QWEN,
        *("--auth-type", "openai", "--yolo", "-p", agents.prompt(QWEN)),
        environ={**KEY, "OPENAI_BASE_URL": f"{agents.url}/v1", "OPENAI_MODEL": MODEL},
    )
    session.assert_finished(session.last_line)


@pytest.mark.slow
def test_mini_swe_agent_finishes_a_session(agents: Agents) -> None:
    settings = ("mini.yaml", f"model.model_kwargs.api_base={agents.url}/v1")
    given = [word for text in (*settings, "model.cost_tracking=ignore_errors")
             for word in ("-c", text)]  # fmt: skip
    session = agents.run(
        MINI,
        *("-m", f"openai/{MODEL}", *given, "-t", agents.prompt(MINI), "-o", "done.json"),
        *("-y", "--exit-immediately", "-l", "0"),
        environ={**KEY, "MSWEA_CONFIGURED": "true"},
    )
    info = json.loads(session.read("done.json"))["info"]
    assert info["exit_status"] == "Submitted"
    session.assert_finished(info["submission"])


@pytest.mark.slow
def test_aider_finishes_a_session(agents: Agents) -> None:
    """It has no tools: it writes files that the answers spell, and a test is what it runs."""
    session = agents.run(
        AIDER,
        *("--model", f"openai/{MODEL}", "--message", agents.prompt(AIDER), "--no-git"),
        *("--yes-always", "--no-check-update", "--analytics-disable", "--no-pretty"),
        *("--no-show-model-warnings", "--auto-test", "--test-cmd", f"{SAY_MARKER}; exit 1"),
        environ={**KEY, "OPENAI_API_BASE": f"{agents.url}/v1"},
    )
    said = [line for line in session.done.stdout.splitlines() if line.strip()]
    session.assert_finished(said[-2] if said else "")
    assert session.done.stdout.count("Applied edit to steps.txt") == NUM_STEPS


@pytest.mark.parametrize(
    "kind",
    [
        "openai-chat",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in SDKS if kind != "openai-chat"),
    ],
)
def test_a_vendors_library_finishes_a_session(agents: Agents, kind: str) -> None:
    client = SDKS[kind]
    session = agents.run(client, agents.url, MODEL, agents.prompt(client))
    session.assert_finished(session.done.stdout)
