"""What the stores of an API process hold, as metrics; docs/host-memory.md lists their bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tokenspeed.server.http.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenspeed.server.http.unread import Unread
    from tokenspeed.server.metrics import HostMetrics

TELL_S = 5.0
"""With several API processes any of them answers for all: each tells its own figures in time."""


class HostMemory:
    """Tells the metrics of an API process what it holds.

    Args:
        stores: name -> returns the bytes that it holds.
        unread: says how many answers were cut off.
    """

    def __init__(
        self, metrics: HostMetrics, stores: Mapping[str, Callable[[], int]], unread: Unread
    ) -> None:
        self._metrics = metrics
        self._stores = dict(stores)
        self._unread = unread
        self._num_cut = self._num_aborted = 0

    def tell(self) -> None:
        """Tell all figures as of now."""
        for name, num_bytes in self._stores.items():
            self._metrics.held.labels(name).set(num_bytes())
        num_cut, num_aborted = self._unread.num_cut, Connection.num_aborted
        self._metrics.cut.inc(num_cut - self._num_cut)
        self._metrics.aborted.inc(num_aborted - self._num_aborted)
        self._num_cut, self._num_aborted = num_cut, num_aborted

    def keep_telling(self) -> None:
        """Tell them now and every TELL_S, for as long as the running loop does."""
        self.tell()
        asyncio.get_running_loop().call_later(TELL_S, self.keep_telling)
