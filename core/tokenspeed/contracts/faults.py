"""Planned failures: what tests inject into stores and transfers, drawn from a seed.

Built in rather than patched in, so that every test of every plugin fails the same way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call.

    Args:
        fails: it does nothing and reports failure.
        corrupts: the bytes it moves are damaged on the way, and it does not know.
        delay_polls: polls that pass before its end is reported.
    """

    fails: bool = False
    corrupts: bool = False
    delay_polls: int = 0


class Faults:
    """Draws a fault a call; the same seed and calls give the same faults.

    Args:
        fail_share, corrupt_share: of all calls, in [0, 1].
        max_delay_polls: delays are drawn from 0 to this many.
    """

    def __init__(
        self,
        seed: int,
        *,
        fail_share: float = 0.0,
        corrupt_share: float = 0.0,
        max_delay_polls: int = 0,
    ) -> None:
        self._random = random.Random(seed)
        self._fail_share = fail_share
        self._corrupt_share = corrupt_share
        self._max_delay_polls = max_delay_polls

    def draw(self) -> Fault:
        """Return the next call's fault."""
        return Fault(
            fails=self._random.random() < self._fail_share,
            corrupts=self._random.random() < self._corrupt_share,
            delay_polls=self._random.randint(0, self._max_delay_polls),
        )
