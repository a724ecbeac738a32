"""How late the event loop of an API process is: what every stream of the process waits for.

A timer says when it is due; what it comes later is what something else held the loop for. Costs
some 20 microseconds each time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PERIOD_S = 0.02
"""Between two looks: no stall that is longer goes unseen."""


class LoopLag:
    """Measures the running event loop. Thread: that loop's only.

    Args:
        observe: is told the seconds that a timer came late. Up to 0.001 of an idle loop: the
            loop's timers are rounded up to milliseconds.
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._due_s = 0.0

    def keep_measuring(self) -> None:
        """Look every PERIOD_S, for as long as the running loop does."""
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + PERIOD_S
        loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        self._observe(max(0.0, asyncio.get_running_loop().time() - self._due_s))
        self.keep_measuring()
