"""Progress of a start on stderr: a bar on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Self

from tokenspeed.log import say

if TYPE_CHECKING:
    import rich.progress

    from tokenspeed.engine.reports import Progress


class StartProgress:
    """Shows what the engine reports while it starts; silent outside of `with`.

    Thread: `show` may be called from any one thread.
    """

    def __init__(self) -> None:
        self._bars: rich.progress.Progress | None = None
        self._tasks: dict[str, rich.progress.TaskID] = {}
        self._is_open = False
        self._seen: set[str] = set()

    def __enter__(self) -> Self:
        self._is_open = True
        if sys.stderr.isatty():
            import rich.console
            import rich.progress

            console = rich.console.Console(stderr=True)
            self._bars = rich.progress.Progress(console=console, transient=True)
            self._bars.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_open = False
        if self._bars is not None:
            with contextlib.suppress(OSError):
                self._bars.stop()

    def show(self, progress: Progress) -> None:
        """Show one report."""
        if not self._is_open:
            return
        if self._bars is not None:
            with contextlib.suppress(OSError):  # nobody reads any more
                self._show_bar(self._bars, progress)
        elif progress.stage not in self._seen:
            self._seen.add(progress.stage)
            say(f"tokenspeed: loading {progress.stage}")

    def _show_bar(self, bars: rich.progress.Progress, progress: Progress) -> None:
        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = bars.add_task(f"loading {progress.stage}", total=None)
        bars.update(
            self._tasks[progress.stage],
            completed=progress.done,
            total=progress.total or None,
        )
