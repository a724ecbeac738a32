"""Real agents' clients, headless: one server for all, a home and a folder of work for each.

A client's session is the same everywhere: three calls of its shell tool, each of which writes a
line and prints the marker, then a final text; where the client goes on with a session, one more of
each. All clients share a model whose answers go by the number of markers, so the text of each
client's user begins where its own answers do.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import tokenizers
from tests.support.client_session import Session
from tests.support.dialogue import MARKER, SAY_MARKER, write_dialogue_model
from tests.support.engine_record import EngineRecord
from tests.support.server import ServerProcess
from tests.support.wiretap import Wiretap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.families import Family

CLIENTS = Path(__file__).parents[2] / ".cache/clients"
"""Where `make clients` puts them."""
SMALL = "small"
"""The folder of those that the default suite runs."""
MODEL = "agents"
NUM_STEPS = 3
FINAL, LAST = "All three steps are done.", "The fourth step is done too."
MORE = f"And now a fourth step. {MARKER}"
"""What the user says when a client goes on."""


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
