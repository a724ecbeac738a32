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
import tokenizers
from tests.support.dialogue import MARKER, SAY_MARKER, write_dialogue_model
from tests.support.engine_record import EngineRecord, shared_tokens
from tests.support.server import ServerProcess
from tests.support.wiretap import Wiretap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.engine_record import Served
    from tests.support.families import Family
    from tests.support.wiretap import Exchange

CLIENTS = Path(__file__).parents[2] / ".cache/clients"
"""Where `make clients` puts them."""
SMALL = "small"
"""The folder of those that the default suite runs."""
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


def shell_calls(tool: str, argument: str, *, after: str = "", **more: Any) -> list[str | Call]:
    """Return the answers of a session that calls a shell tool.

    Args:
        argument: of the tool, which takes the command.
        after: what else the command does.
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
    return [*calls[:NUM_STEPS], FINAL, *calls[NUM_STEPS:], LAST]


@dataclass(frozen=True, slots=True)
class Client:
    """A client and what the model says to it; how it is run is said by the class of each.

    Args:
        program: below the folder of clients, with the arguments that are always given; names it.
        answers: the n-th where the prompt has n markers more than before the client's own.
    """

    program: tuple[str, ...]
    answers: Sequence[str | Call] = field(repr=False)

    @property
    def command(self) -> list[str]:
        """Return the program's command; skip the test where it cannot be installed.

        The small clients are there wherever their registry can be reached: `make test` installs
        them.
        """
        path = CLIENTS / self.program[0]
        if not path.exists():
            _miss(path)
        if "node_modules" in path.parts and shutil.which("node") is None:
            pytest.skip("node is missing: apt-get install nodejs")
        return [str(path), *self.program[1:]]

    def environ(self, url: str) -> Mapping[str, str]:
        """Return all that it finds in its environment, but its home and the search path."""
        return {}

    def files(self, url: str) -> Mapping[str, str]:
        """Return texts by their paths below the home."""
        return {}

    def arguments(self, url: str, text: str, *, goes_on: bool) -> tuple[str, ...]:
        """Return the arguments of one run.

        Args:
            text: of the user.
            goes_on: with the last session of this home.
        """
        raise NotImplementedError

    def final(self, session: Session) -> str:
        """Return the final text of the last run."""
        return session.last_line


class Agents:
    """A server with the answers for several clients, listened to; a context manager.

    Args:
        family: of the chat template.
        fields: of the model's config.json.
    """

    def __init__(
        self, folder: Path, clients: Sequence[Client], family: Family, **fields: Any
    ) -> None:
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
            **fields,
        )
        self.tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
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

    def session(self, client: Client, *, url: str = "") -> Session:
        """Begin a session, in folders of its own.

        Args:
            url: of the server; "": the one that is listened to.
        """
        self._num_sessions += 1
        home = self._folder / f"home{self._num_sessions}"
        (home / "work").mkdir(parents=True)
        self.record.take()
        self.wire.take()
        return Session(self, client, home, url or self.url)


class Session:
    """A client at work, and what it left behind.

    Args:
        home: its folder `work` is where the client runs.
    """

    def __init__(self, agents: Agents, client: Client, home: Path, url: str) -> None:
        self.home = home
        self.done = subprocess.CompletedProcess([], 0, "", "")
        self.served: list[Served] = []
        self._agents = agents
        self._client = client
        self._url = url
        self._environ = {"HOME": str(home), "PATH": _search_path(), **client.environ(url)}
        self._wire: list[Exchange] = []
        for path, text in client.files(url).items():
            self.write(path, text)

    def write(self, path: str, text: str) -> None:
        """Write a file below the home."""
        (self.home / path).parent.mkdir(parents=True, exist_ok=True)
        (self.home / path).write_text(text, encoding="utf-8")

    def ask(self, text: str, *, goes_on: bool = False) -> str:
        """Run the client with a text of the user to its end; return its final text."""
        self.run(*self._client.arguments(self._url, text, goes_on=goes_on))
        assert self.done.returncode == 0, self.said
        return self._client.final(self).strip()

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

    def start(self, text: str) -> subprocess.Popen[bytes]:
        """Start the client with a text, as the leader of a group of its own."""
        return subprocess.Popen(
            [*self._client.command, *self._client.arguments(self._url, text, goes_on=False)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.home / "work",
            env=self._environ,
            start_new_session=True,
        )

    def assert_steps(self, num_steps: int) -> None:
        """Assert that the client's tool ran so often, once for each step."""
        steps = self.read("steps.txt").split()
        assert steps == [str(step) for step in range(1, num_steps + 1)], f"{steps}\n{self.said}"

    def assert_continued(self, *lengths: int, wire_tells: bool = True) -> None:
        """Assert that each turn took all of the turn before it from the cache.

        That is its prompt and its output, but the token sampled last: nobody computed it.

        Args:
            lengths: turns of each chain of such turns, in order of their first.
            wire_tells: the client asked for the usage, which is then the engine's truth.
        """
        self.look()
        chains = self._chains()
        assert tuple(map(len, chains)) == lengths, self.shown
        for chain in chains:
            for before, after in pairwise(chain):
                assert after.cached == len(before.kept), self.shown
        self.assert_nothing_is_computed_twice()
        told = Counter(usage for one in self._wire if (usage := one.usage()) is not None)
        assert not told - Counter(one.counts for one in self.served), self.shown
        untold = [one for one in self._wire if one.usage() is None and not one.has_failed]
        assert wire_tells == (not untold), self.shown

    def assert_nothing_is_computed_twice(self) -> None:
        """Assert that each prompt was cached as far as it is that of an earlier turn."""
        for index, one in enumerate(self.served):
            shared = max(
                (shared_tokens(old.kept, one.prompt) for old in self.served[:index]), default=0
            )
            assert one.cached >= min(shared, len(one.prompt) - 1), self.shown

    def look(self) -> None:
        """Take what the engine and the wire saw since the last time."""
        self.served += self._agents.record.take()
        self._wire += self._agents.wire.take()

    def _chains(self) -> list[list[Served]]:
        """Return the requests, each behind the longest one that it goes on from."""
        chains: list[list[Served]] = []
        for one in self.served:
            fitting = [
                chain
                for chain in chains
                if shared_tokens(chain[-1].kept, one.prompt) == len(chain[-1].kept)
            ]
            if fitting:
                max(fitting, key=lambda chain: len(chain[-1].kept)).append(one)
            else:
                chains.append([one])
        return chains

    def read(self, path: str) -> str:
        """Return the text of a file below the folder of work."""
        file = self.home / "work" / path
        assert file.exists(), self.said
        return file.read_text()

    @property
    def last_line(self) -> str:
        """The last line that the client printed."""
        return (self.done.stdout.splitlines() or [""])[-1]

    @property
    def said(self) -> str:
        """All that the last run printed."""
        return f"{self.done.stdout}\n{self.done.stderr}"

    @property
    def shown(self) -> str:
        """What the engine did and the client was told, for messages."""
        rows = [f"turn {i}: {one.counts} {one.end}" for i, one in enumerate(self.served)]
        rows += [f"told {one.status} {one.path}: {one.usage()}" for one in self._wire]
        return "\n".join(["(prompt, cached, output) and why the match ended", *rows])


def npm(name: str) -> tuple[str]:
    """Return the program of an npm package."""
    return (f"node_modules/.bin/{name}",)


def _miss(path: Path) -> None:
    """Skip the test, or fail it where nothing prevents the client from being there."""
    unreachable = CLIENTS / "small.unreachable"
    if SMALL not in path.parts:
        pytest.skip(f"{path} is missing: make clients")
    if not unreachable.exists():
        pytest.fail(f"{path} is missing: make clients-small")
    reason = (unreachable.read_text(encoding="utf-8").splitlines() or [""])[-1]
    pytest.skip(f"the registry of {path} could not be reached: {reason}")


def _written(family: Family, answer: str | Call, call_id: str) -> str:
    if isinstance(answer, str):
        return family.write_answer(answer)
    return family.write_call(answer.text, answer.tool, answer.arguments, call_id)


def _search_path() -> str:
    node = shutil.which("node")
    folders = [str(Path(node).parent)] if node else []
    return os.pathsep.join([*folders, "/usr/local/bin", "/usr/bin", "/bin"])
