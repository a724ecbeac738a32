"""A child process that runs a plugin's code: whatever it does, it is over when its time is.

Its words go to files. A pipe would stay open for as long as anything that the plugin left behind
holds it, and reading to its end would never end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_BYTES = 1 << 22
"""Of what a child wrote: the beginning of its answer, the end of its complaints."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended.

    Args:
        code: exit code, negative for a signal; None: its time was over and it was killed.
        output: what it wrote to stdout.
        errors: what it wrote to stderr.
    """

    code: int | None
    output: str
    errors: str

    @property
    def last_words(self) -> str:
        """Return the last line that it wrote to stderr; "" if none."""
        return "".join(self.errors.strip().splitlines()[-1:])

    @property
    def signal_name(self) -> str:
        """Return the name of the signal that ended it; "" if none did."""
        if self.code is None or self.code >= 0:
            return ""
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


class ChildProcess:
    """`python -m MODULE ARGUMENTS`, with nothing of the working directory on its path.

    It leads a session of its own, so that what it started and left there ends with it.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], *, environ: Mapping[str, str] | None = None
    ) -> None:
        # Closed by `finish`.
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            env=environ,
            start_new_session=True,
        )

    def finish(self, wait_s: float) -> Ended:
        """Wait until it ends, or kill it; call it once."""
        try:
            code: int | None = self._child.wait(max(0.0, wait_s))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self.kill()
        with self._output, self._errors:
            return Ended(code, _text(self._output, 0), _text(self._errors, MAX_BYTES))

    def kill(self) -> None:
        """End it and everything in its session; safe to call twice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def _text(file: IO[bytes], from_end: int) -> str:
    """Read the beginning of a file, or its last `from_end` bytes."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - from_end) if from_end else 0)
    return file.read(MAX_BYTES).decode(errors="replace")
