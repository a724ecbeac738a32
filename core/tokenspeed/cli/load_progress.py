"""Progress of a load on stderr: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Self

from tokenspeed.log import say

if TYPE_CHECKING:
    import rich.progress

INTERVAL_S = 5.0


class LoadProgress:
    """Shows how many of `total` requests are done."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._bars: rich.progress.Progress | None = None
        self._said_s = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            import rich.console
            import rich.progress

            console = rich.console.Console(stderr=True)
            self._bars = rich.progress.Progress(
                *rich.progress.Progress.get_default_columns(),
                "{task.completed:.0f} of {task.total:.0f} requests",
                console=console,
                transient=True,
            )
            self._task = self._bars.add_task("measuring", total=self._total)
            self._bars.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bars is not None:
            with contextlib.suppress(OSError):
                self._bars.stop()

    def show(self, done: int) -> None:
        """Show that `done` requests have ended; called often, also without news."""
        if self._bars is not None:
            with contextlib.suppress(OSError):
                self._bars.update(self._task, completed=done)
        elif time.monotonic() - self._said_s >= INTERVAL_S:
            self._said_s = time.monotonic()
            say(f"tokenspeed: {done} of {self._total} requests done")
