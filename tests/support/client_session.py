"""A client's session: run in folders of its own, then held against what the engine did for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.engine_record import shared_tokens

if TYPE_CHECKING:
    from tests.support.clients import Agents, Client
    from tests.support.engine_record import Served
    from tests.support.wiretap import Exchange

CLIENT_TIMEOUT_S = 120


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


def _search_path() -> str:
    node = shutil.which("node")
    folders = [str(Path(node).parent)] if node else []
    return os.pathsep.join([*folders, "/usr/local/bin", "/usr/bin", "/bin"])
