"""Real servers for tests: `tokenspeed serve` as a process, with its own port, cache and log."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCRIPT = "Hello world, this is a test."
"""What the shared scripted server says."""

START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.body)


def hostile_folder(parent: Path) -> Path:
    """Make a working folder whose modules end every process that imports one of them.

    A server's processes must not look there: users start servers among files of their own.
    """
    folder = parent / "work"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenspeed", "torch", "numpy", "json", "logging", "fastapi", "msgspec"):
        (folder / f"{name}.py").write_text("raise SystemExit('taken from the working folder')\n")
    return folder


class ServerProcess:
    """A running `tokenspeed serve`; a context manager that stops it.

    Args:
        through: arguments of Python that start another program, which starts the server.
    """

    def __init__(
        self,
        model: Path,
        folder: Path,
        *flags: str,
        environ: dict[str, str] | None = None,
        new_session: bool = False,
        python: Path | str = sys.executable,
        through: tuple[str, ...] = (),
    ):
        self.model = model.name
        self.log = folder / "server.log"
        command = [str(python), "-P", *through, "-m", "tokenspeed", "serve", str(model)]
        command += ["--port", "0"]
        command += ["--plugins", "sdk", "--block-tokens", "16", *flags]
        own = {"TOKENSPEED_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stderr=log,
                cwd=hostile_folder(folder),
                env={**os.environ, **own, **(environ or {})},
                start_new_session=new_session,
            )
        self.url = self._wait_ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Stop the server; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def children(self) -> list[int]:
        """Return the process ids of the engine and the API processes."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        found = []
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(path.replace(f"task/{self.process.pid}", f"task/{task}")) as file:
                found += [int(pid) for pid in file.read().split()]
        return found

    def call(
        self,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        method: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request (POST when it has a body) and return the answer, whatever its status."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, headers={"Content-Type": "application/json", **(headers or {})}
        )
        request.method = method or ("GET" if data is None else "POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return Answer(reply.status, dict(reply.headers), reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read())

    def metric(self, name: str) -> float:
        """Return one metric; wait for the engine's first figures, which come within a second."""
        text = self.metrics_where(lambda text: _value_in(text, name) is not None)
        value = _value_in(text, name)
        assert value is not None
        return value

    def wait_metric(self, name: str, value: float, *, timeout_s: float = 60.0) -> str:
        """Wait until a metric has a value; engine figures are sent about once a second.

        Each API process has figures of its own: what is read beside this one is read in the text
        that is returned.
        """
        return self.metrics_where(lambda text: _value_in(text, name) == value, timeout_s)

    def metrics_where(self, holds: Callable[[str], bool], timeout_s: float = 60.0) -> str:
        """Return the text of /metrics once it is as wished."""
        deadline_s = time.monotonic() + timeout_s
        while not holds(text := self.call("/metrics").body.decode()):
            assert time.monotonic() < deadline_s, f"after {timeout_s} s the metrics are\n{text}"
            time.sleep(0.05)
        return text

    def _wait_ready(self) -> str:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            text = self.log.read_text()
            found = re.search(r"^ready +(http\S+)/v1", text, re.MULTILINE)
            if found is not None:
                return found[1]
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{text}")
            time.sleep(0.05)
        self.process.kill()
        raise AssertionError(f"the server is not ready after {START_TIMEOUT_S} s:\n{text}")


def run_cli(
    *arguments: str, environ: dict[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tokenspeed", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **(environ or {})},
        check=False,
    )


def _value_in(text: str, name: str) -> float | None:
    """Return a metric of the text, labels included in its name; None where it is not."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])
