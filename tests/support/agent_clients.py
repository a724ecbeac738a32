"""The coding agents that the tests run: how each is pointed at a server, asked, and asked again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.clients import (
    FINAL,
    MODEL,
    NUM_STEPS,
    Call,
    Client,
    npm,
    shell_calls,
)
from tests.support.dialogue import SAY_MARKER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.client_session import Session

KEY = {"OPENAI_API_KEY": "x"}
LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""It would else look for prices on the internet."""


class ClaudeCode(Client):
    """Over messages."""

    def environ(self, url: str) -> Mapping[str, str]:
        sizes = ("OPUS", "SONNET", "HAIKU")
        return {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "x",
            "ANTHROPIC_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **{f"ANTHROPIC_DEFAULT_{size}_MODEL": MODEL for size in sizes},
        }

    def arguments(self, url: str, text: str, *, goes_on: bool) -> tuple[str, ...]:
        given = ("-p", text, "--allowedTools", "Bash", "--output-format", "json")
        return ("-c", *given) if goes_on else given

    def final(self, session: Session) -> str:
        result = json.loads(session.last_line or "{}")
        return "an error" if result.get("is_error") else str(result.get("result"))


class Codex(Client):
    """Over responses."""

    def environ(self, url: str) -> Mapping[str, str]:
        return KEY

    def files(self, url: str) -> Mapping[str, str]:
        lines = [
            f'model = "{MODEL}"',
            'model_provider = "local"',
            "[model_providers.local]",
            'name = "local"',
            f'base_url = "{url}/v1"',
            'env_key = "OPENAI_API_KEY"',
            'wire_api = "responses"',
        ]
        return {".codex/config.toml": "\n".join(lines)}

    def arguments(self, url: str, text: str, *, goes_on: bool) -> tuple[str, ...]:
        given = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        resume = ("resume", "--last") if goes_on else ()
        return ("exec", *resume, *given, "-o", "final.txt", text)

    def final(self, session: Session) -> str:
        return session.read("final.txt")


class OpenCode(Client):
    """Over chat completions."""

    def files(self, url: str) -> Mapping[str, str]:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{url}/v1", "apiKey": "x"},
            "models": {MODEL: {"limit": {"context": 200_000, "output": 8_000}}},
        }
        name = f"local/{MODEL}"
        config = {"model": name, "small_model": name, "provider": {"local": provider}}
        return {"work/opencode.json": json.dumps(config)}

    def arguments(self, url: str, text: str, *, goes_on: bool) -> tuple[str, ...]:
        return ("run", *(("-c",) if goes_on else ()), text)


class QwenCode(Client):
    """Over chat completions. Its first message lists the files, so none may come new."""

    def environ(self, url: str) -> Mapping[str, str]:
        return {**KEY, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": MODEL}

    def files(self, url: str) -> Mapping[str, str]:
        return {"work/steps.txt": ""}

    def arguments(self, url: str, text: str, *, goes_on: bool) -> tuple[str, ...]:
        goes_on_too = ("--continue",) if goes_on else ()
        return ("--auth-type", "openai", "--yolo", *goes_on_too, "-p", text)


class MiniSweAgent(Client):
    """Over chat completions that do not stream; cannot go on."""

    def environ(self, url: str) -> Mapping[str, str]:
        return {**KEY, **LITELLM, "MSWEA_CONFIGURED": "true"}

    def arguments(self, url: str, text: str, *, goes_on: bool) -> tuple[str, ...]:
        settings = ("mini.yaml", f"model.model_kwargs.api_base={url}/v1")
        words = [("-c", one) for one in (*settings, "model.cost_tracking=ignore_errors")]
        given = [word for pair in words for word in pair]
        end = ("-o", "done.json", "-y", "--exit-immediately", "-l", "0")
        return ("-m", f"openai/{MODEL}", *given, "-t", text, *end)

    def final(self, session: Session) -> str:
        info = json.loads(session.read("done.json"))["info"]
        return str(info["submission"] if info["exit_status"] == "Submitted" else info)


class Aider(Client):
    """Over chat completions, without tools: a test is what it runs; cannot go on."""

    def environ(self, url: str) -> Mapping[str, str]:
        return {**KEY, **LITELLM, "OPENAI_API_BASE": f"{url}/v1"}

    def arguments(self, url: str, text: str, *, goes_on: bool) -> tuple[str, ...]:
        quiet = ("--no-check-update", "--analytics-disable", "--no-show-model-warnings")
        test = ("--auto-test", "--test-cmd", f"{SAY_MARKER}; exit 1")
        given = ("--no-git", "--yes-always", "--no-pretty", *quiet, *test)
        return ("--model", f"openai/{MODEL}", "--message", text, *given)

    def final(self, session: Session) -> str:
        said = [line for line in session.done.stdout.splitlines() if line.strip()]
        return said[-2] if len(said) > 1 else ""


PAUSE = "; sleep 0.3"
"""Qwen Code now and then misses what a command printed that ends at once."""
SUBMIT = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo '{FINAL}'"
"""How mini-swe-agent's model ends a session."""
EDITS = [
    "steps.txt\n```\n" + "\n".join("123"[:step]) + "\n```\n" for step in range(1, NUM_STEPS + 1)
]
"""Files as aider's model writes them."""

CLAUDE_CODE = ClaudeCode(npm("claude"), shell_calls("Bash", "command", description="A step"))
CODEX = Codex(npm("codex"), shell_calls("exec_command", "cmd"))
OPENCODE = OpenCode(npm("opencode"), shell_calls("bash", "command", description="A step"))
QWEN_CODE = QwenCode(
    npm("qwen"),
    shell_calls("run_shell_command", "command", after=PAUSE, is_background=False),
)
MINI_SWE_AGENT = MiniSweAgent(
    ("small/bin/python", "-m", "minisweagent.run.mini"),
    [*shell_calls("bash", "command")[:NUM_STEPS], Call("", "bash", {"command": SUBMIT})],
)
AIDER = Aider(
    ("aider/bin/python", "-m", "aider"), [text for edit in EDITS for text in (edit, edit)] + [FINAL]
)
AGENTS = {
    "claude-code": CLAUDE_CODE,
    "codex": CODEX,
    "opencode": OPENCODE,
    "qwen-code": QWEN_CODE,
    "mini-swe-agent": MINI_SWE_AGENT,
    "aider": AIDER,
}
