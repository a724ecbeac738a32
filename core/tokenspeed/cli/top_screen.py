"""The terminal of `tokenspeed top`: a live screen, or plain text where nobody looks at one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tokenspeed.cli.top_view import picture

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_WIDTH = 120
PLAIN_HEIGHT = 1000
"""Size of a picture that goes into a file or pipe: everything is shown."""


class Screen:
    """Shows pictures. Live on a terminal, one text after another elsewhere.

    Args:
        url: of the server, for the head line.
        is_live: redraw in place, when stdout is a terminal.
    """

    def __init__(self, url: str, *, is_live: bool = False) -> None:
        self._url = url
        self._last: dict[str, Any] | None = None
        self._problem = ""
        is_terminal = sys.stdout.isatty()
        self._console = Console(no_color=not is_terminal, highlight=False)
        if not is_terminal:
            self._console = Console(
                no_color=True, highlight=False, width=PLAIN_WIDTH, height=PLAIN_HEIGHT
            )
        self._live: Live | None = None
        if is_live and is_terminal:
            self._live = Live(
                console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop"
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def print(self, state: dict[str, Any]) -> None:
        """Print one picture in full, whatever the terminal's height."""
        width = self._console.size.width
        self._console.print(picture(state, None, self._url, width=width, height=PLAIN_HEIGHT))

    def show(self, state: dict[str, Any] | None, problem: str) -> None:
        """Show a picture; without one the problem, above what was seen last."""
        size = self._console.size
        drawn: RenderableType
        if state is not None:
            drawn = picture(state, self._last, self._url, width=size.width, height=size.height)
            self._last = state
        else:
            drawn = Text(problem, style="bold red")
        is_news = not problem or problem != self._problem
        self._problem = problem
        if self._live is not None:
            self._live.update(drawn, refresh=True)
        elif is_news:  # in a file or pipe a server that stays away is said once
            self._console.print(drawn)
            sys.stdout.flush()
