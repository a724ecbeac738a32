"""One client's connection: uvicorn's, and a limit on how long it may take nothing of an answer.

What the client has not taken lies in the connection's buffer, and the answer's writer waits. A
client that takes nothing at all for a while is gone, or means harm: its connection is aborted.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from tokenspeed.log import LOGGER

STALL_S = 120.0
"""A debugger, a full pipe or a sleeping laptop are back in less."""


class Connection(H11Protocol):
    """Aborts itself when its client has taken nothing for STALL_S, though something is there."""

    num_aborted = 0
    """Of all connections of the process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stall: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Begin to watch: the buffer is full."""
        super().pause_writing()
        self._watch(self._num_waiting())

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._unwatch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._unwatch()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also one whose client never takes the rest of an answer."""
        super().timeout_keep_alive_handler()
        self._watch(self._num_waiting())

    def _num_waiting(self) -> int:
        return int(self.transport.get_write_buffer_size())

    def _watch(self, num_waiting: int) -> None:
        self._unwatch()
        if num_waiting:
            self._stall = self.loop.call_later(STALL_S, self._look, num_waiting)

    def _unwatch(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _look(self, num_waiting_before: int) -> None:
        num_waiting = self._num_waiting()
        if num_waiting < num_waiting_before:
            self._watch(num_waiting)
            return
        Connection.num_aborted += 1
        LOGGER.warning(
            "a client took nothing of its answer for %.0f s, %d bytes wait; its connection is "
            "aborted", STALL_S, num_waiting,
        )  # fmt: skip
        self.transport.abort()
