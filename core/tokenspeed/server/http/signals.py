"""SIGINT and SIGTERM of the launching processes: the first interrupts, a later one hurries."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SAME_WISH_S = 0.5
"""Signals this close together are one: a terminal signals a group, and a parent passes it on."""

POLL_S = 0.5
"""Longest wait of the main thread in one call. The system may hand the second of two signals to
another thread while the main thread sleeps on a lock that it does not leave: it must look itself.
"""


class StopSignals:
    """Raises KeyboardInterrupt in the main thread at a signal, until stopping has begun.

    Args of `begin_stop`: `at_once` is called by a later signal, between any two instructions of
    the main thread: it must take no lock.
    """

    def __init__(self) -> None:
        self._last_s = float("-inf")
        self._at_once: Callable[[], None] | None = None

    def install(self) -> None:
        """Handle the signals from now on; main thread only."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def begin_stop(self, at_once: Callable[[], None]) -> None:
        """Interrupt no more; a signal later than the last one's repetition calls `at_once`."""
        self._at_once = at_once

    def _handle(self, signal_number: int, frame: object) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s < SAME_WISH_S:
            return
        self._last_s = now_s
        if self._at_once is None:
            raise KeyboardInterrupt
        self._at_once()
