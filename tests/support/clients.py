"""Real agents' clients, headless: one server for all, a home and a folder of work for each.

A client's session is the same everywhere: three calls of its shell tool, each of which writes a
line and prints the marker, then a final text; where the client goes on with a session, one more of
each. All clients share a model whose answers go by the number of markers, so the text of each
client's user begins where its own answers do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from tests.support.dialogue import MARKER, SAY_MARKER, write_dialogue_model
from tests.support.engine_record import EngineRecord
from tests.support.server import ServerProcess
from tests.support.wiretap import Wiretap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.engine_record import Served
    from tests.support.families import Family
    from tests.support.wiretap import Exchange

CLIENTS = Path(__file__).parents[2] / ".cache/clients"
"""Where `make clients` puts them."""
MODEL = "agents"
NUM_STEPS = 3
FINAL, LAST = "All three steps are done.", "The fourth step is done too."
MORE = f"And now a fourth step. {MARKER}"
"""What the user says when a client goes on."""
CLIENT_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a client's tool that the model is to make, with a text before it."""

    text: str
    tool: str
    arguments: dict[str, Any]


def shell_calls(
    tool: str, argument: str, *, after: str = "", last: bool = True, **more: Any
) -> list[str | Call]:
    """Return the answers of a session that calls a shell tool.

    Args:
        argument: of the tool, which takes the command.
        after: what else the command does.
        last: the user asks for a fourth step.
        more: the tool's other arguments.
    """
    calls: list[str | Call] = [
        Call(
            f"Step {step}.\n",
            tool,
            {argument: f"{SAY_MARKER}; echo {step} >> steps.txt{after}", **more},
        )
        for step in range(1, NUM_STEPS + 2)
    ]
    first = [*calls[:NUM_STEPS], FINAL]
    return [*first, calls[NUM_STEPS], LAST] if last else first


@dataclass(frozen=True, slots=True)
class Client:
    """A client and what the model says to it.

    Args:
        program: below the folder of clients, with the arguments that are always given; names it.
        answers: the n-th where the prompt has n markers more than before the client's own.
    """

    program: tuple[str, ...]
    answers: Sequence[str | Call] = field(repr=False)

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
    """A server with the answers for several clients, listened to; a context manager.

    Args:
        family: of the chat template.
    """

    def __init__(self, folder: Path, clients: Sequence[Client], family: Family) -> None:
        self.family = family
        self._folder = folder
        self._first: dict[tuple[str, ...], int] = {}
        self._num_sessions = 0
        answers = [family.write_answer("No step was asked for.")]
        for client in clients:
            self._first[client.program] = len(answers)
            for answer in client.answers:
                answers.append(_written(family, answer, f"call{len(answers):05d}"))
        model = write_dialogue_model(
            folder / MODEL,
            answers,
            template=family.template,
            specials=family.specials,
            ends=tuple(dict.fromkeys(family.ends)),
        )
        record = folder / "record"
        self.server = ServerProcess(model, folder, "--kv-gib", "1", "--record", str(record))
        self.record = EngineRecord(record)
        self.wire = Wiretap(self.server.url)
        self.url = self.wire.url

    def __enter__(self) -> Self:
        self.wire.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.wire.__exit__()
        self.server.stop()

    def prompt(self, client: Client) -> str:
        """Return the text that begins the client's part of the dialogue."""
        return "Do the three steps. " + MARKER * self._first[client.program]

    def session(self, client: Client, *, environ: dict[str, str] | None = None) -> Session:
        """Begin a session, in folders of its own.

        Args:
            environ: all that the client finds, but its home and the search path.
        """
        self._num_sessions += 1
        home = self._folder / f"home{self._num_sessions}"
        (home / "work").mkdir(parents=True)
        self.record.take()
        self.wire.take()
        return Session(self, client, home, environ or {})


class Session:
    """A client at work, and what it left behind.

    Args:
        home: its folder `work` is where the client runs.
    """

    def __init__(self, agents: Agents, client: Client, home: Path, environ: dict[str, str]) -> None:
        self.home = home
        self.done = subprocess.CompletedProcess([], 0, "", "")
        self._agents = agents
        self._client = client
        self._environ = {"HOME": str(home), "PATH": _search_path(), **environ}
        self._served: list[Served] = []
        self._wire: list[Exchange] = []

    def write(self, path: str, text: str) -> None:
        """Write a file below the home."""
        (self.home / path).parent.mkdir(parents=True, exist_ok=True)
        (self.home / path).write_text(text, encoding="utf-8")

    def run(self, *arguments: str) -> None:
        """Run the client to its end."""
        self.done = subprocess.run(
            [*self._client.command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CLIENT_TIMEOUT_S,
            cwd=self.home / "work",
            env=self._environ,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the client, as the leader of a group of its own."""
        return subprocess.Popen(
            [*self._client.command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.home / "work",
            env=self._environ,
            start_new_session=True,
        )

    def assert_finished(self, final: str, *, expected: str = FINAL) -> None:
        """Assert that the client ended well, its tool ran as often as told and its text is exact.

        Args:
            final: what the client took for the final text.
        """
        said = f"{self.done.stdout}\n{self.done.stderr}"
        assert self.done.returncode == 0, said
        steps = self.read("steps.txt").split()
        num_steps = NUM_STEPS + expected.endswith(LAST)
        assert steps == [str(step) for step in range(1, num_steps + 1)], f"{steps}\n{said}"
        assert final.strip() == expected, said

    def assert_continued(self, *lengths: int, wire_tells: bool = True) -> None:
        """Assert that each turn took all of the turn before it from the cache.

        That is its prompt and its output, but the token sampled last: nobody computed it.

        Args:
            lengths: turns of each chain of such turns, in order of their first.
            wire_tells: the client asked for the usage, which is then the engine's truth.
        """
        chains = self.chains()
        assert tuple(map(len, chains)) == lengths, self._shown(chains)
        for chain in chains:
            for before, after in pairwise(chain):
                assert after.cached == len(before.kept), self._shown(chains)
        told = Counter(usage for one in self._wire if (usage := one.usage()) is not None)
        truth = Counter(one.counts for one in self._served)
        assert told == (truth if wire_tells else Counter()), self._shown(chains)

    def chains(self) -> list[list[Served]]:
        """Return the requests so far, each behind the longest one that it goes on from."""
        self._served += self._agents.record.take()
        self._wire += self._agents.wire.take()
        chains: list[list[Served]] = []
        for one in self._served:
            fitting = [c for c in chains if one.prompt[: len(c[-1].kept)] == c[-1].kept]
            longest = max(fitting, key=lambda chain: len(chain[-1].kept), default=None)
            if longest is None:
                chains.append([one])
            else:
                longest.append(one)
        return chains

    def read(self, path: str) -> str:
        """Return the text of a file below the folder of work."""
        file = self.home / "work" / path
        assert file.exists(), f"{self.done.stdout}\n{self.done.stderr}"
        return file.read_text()

    @property
    def last_line(self) -> str:
        """The last line that the client printed."""
        return (self.done.stdout.splitlines() or [""])[-1]

    def _shown(self, chains: list[list[Served]]) -> str:
        rows = [f"chain {i}: {one.counts} {one.end}" for i, c in enumerate(chains) for one in c]
        rows += [f"told {one.status} {one.path}: {one.usage()}" for one in self._wire]
        return "\n".join(["(prompt, cached, output) and why the match ended", *rows])


def _written(family: Family, answer: str | Call, call_id: str) -> str:
    if isinstance(answer, str):
        return family.write_answer(answer)
    return family.write_call(answer.text, answer.tool, answer.arguments, call_id)


def _search_path() -> str:
    node = shutil.which("node")
    folders = [str(Path(node).parent)] if node else []
    return os.pathsep.join([*folders, "/usr/local/bin", "/usr/bin", "/bin"])
