"""Real agents' clients, headless: one server for all, a home and a folder of work for each.

A client's session is the same everywhere: three calls of its shell tool, each of which writes a
line and prints the marker, then a final text. All clients share a model whose answers go by the
number of markers, so the text of each client's user begins where its own answers do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.dialogue import MARKER, SAY_MARKER, hermes_call, write_dialogue_model
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

CLIENTS = Path(__file__).parents[2] / ".cache/clients"
"""Where `make clients` puts them."""
FINAL = "All three steps are done."
MODEL = "agents"
NUM_STEPS = 3
CLIENT_TIMEOUT_S = 120


def shell_calls(tool: str, argument: str, *, after: str = "", **more: Any) -> list[str]:
    """Return three answers that call a shell tool.

    Args:
        argument: of the tool, which takes the command.
        after: what else the command does.
        more: the tool's other arguments.
    """
    return [
        f"Step {step}.\n"
        + hermes_call(tool, {argument: f"{SAY_MARKER}; echo {step} >> steps.txt{after}", **more})
        for step in range(1, NUM_STEPS + 1)
    ]


@dataclass(frozen=True, slots=True)
class Client:
    """A client and what the model says to it.

    Args:
        program: below the folder of clients, with the arguments that are always given; names it.
        answers: the n-th where the prompt has n markers more than before the client's own.
    """

    program: tuple[str, ...]
    answers: Sequence[str] = field(repr=False)

    @property
    def command(self) -> list[str]:
        """Return the program's command; skip the test where it is not installed."""
        path = CLIENTS / self.program[0]
        if not path.exists():
            pytest.skip(f"{path} is missing: make clients")
        if "node_modules" in path.parts and shutil.which("node") is None:
            pytest.skip("node is missing: apt-get install nodejs")
        return [str(path), *self.program[1:]]


class Agents:
    """A server with the answers for several clients; a context manager that stops it."""

    def __init__(self, folder: Path, clients: Sequence[Client]) -> None:
        self._folder = folder
        self._first: dict[tuple[str, ...], int] = {}
        answers = ["No step was asked for."]
        for client in clients:
            self._first[client.program] = len(answers)
            answers += client.answers
        model = write_dialogue_model(folder / MODEL, answers)
        self.server = ServerProcess(model, folder, "--tool-parser", "hermes", "--kv-gib", "0.5")
        self.url = self.server.url

    def prompt(self, client: Client) -> str:
        """Return the text that begins the client's part of the dialogue."""
        return "Do the three steps. " + MARKER * self._first[client.program]

    def run(
        self,
        client: Client,
        *arguments: str,
        environ: dict[str, str] | None = None,
        files: dict[str, str] | None = None,
    ) -> Session:
        """Run a client to its end, in folders of its own.

        Args:
            environ: all that the client finds, but its home and the search path.
            files: by their paths below the home, whose folder `work` is where the client runs.
        """
        home = self._folder / f"home{self._first[client.program]}"
        work = home / "work"
        work.mkdir(parents=True)
        for path, text in (files or {}).items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text, encoding="utf-8")
        done = subprocess.run(
            [*client.command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CLIENT_TIMEOUT_S,
            cwd=work,
            env={"HOME": str(home), "PATH": _search_path(), **(environ or {})},
            check=False,
        )
        return Session(home, done)


@dataclass(frozen=True, slots=True)
class Session:
    """What a client left behind."""

    home: Path
    done: subprocess.CompletedProcess[str]

    def assert_finished(self, final: str) -> None:
        """Assert that the client ended well, its tool ran three times and its final text is exact.

        Args:
            final: what the client took for the final text.
        """
        said = f"{self.done.stdout}\n{self.done.stderr}"
        assert self.done.returncode == 0, said
        steps = self.read("steps.txt").split()
        assert steps == [str(step) for step in range(1, NUM_STEPS + 1)], f"{steps}\n{said}"
        assert final.strip() == FINAL, said

    def read(self, path: str) -> str:
        """Return the text of a file below the folder of work."""
        file = self.home / "work" / path
        assert file.exists(), f"{self.done.stdout}\n{self.done.stderr}"
        return file.read_text()

    @property
    def last_line(self) -> str:
        """The last line that the client printed."""
        return (self.done.stdout.splitlines() or [""])[-1]


def _search_path() -> str:
    node = shutil.which("node")
    folders = [str(Path(node).parent)] if node else []
    return os.pathsep.join([*folders, "/usr/local/bin", "/usr/bin", "/bin"])
