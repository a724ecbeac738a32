"""Whether steps went well on every rank: rank 0 knows before it uses a step's tokens.

A rank raises in a step that its groups broke in, and what rank 0 waits for does not come. Only
communicators with the feature "late_errors" let a step end with numbers that are worth nothing. A
rank that has one asks them when the device has made a step, and says how many steps went well: by
one number in memory that it shares with rank 0, or from another host by a message.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

LINE_BYTES = 64
"""Each number has a cache line of its own."""
_WORDS = LINE_BYTES // 8


def board_bytes(num_workers: int) -> int:
    """Return the bytes of memory that a board takes."""
    return LINE_BYTES * num_workers


class HealthBoard:
    """The steps that went well, of each worker of rank 0's host (a reader), in shared memory.

    A number is written whole and says all: nothing else has to be seen with it.

    Args:
        memory: zeroed; the board is at its end.
    """

    def __init__(self, memory: mmap.mmap, num_workers: int) -> None:
        self._steps = np.frombuffer(
            memory, np.int64, num_workers * _WORDS, len(memory) - board_bytes(num_workers)
        )[::_WORDS]

    def write(self, reader: int, num_steps: int) -> None:
        """Say so for a reader."""
        self._steps[reader] = num_steps

    def read(self, reader: int) -> int:
        """Return what a reader has said."""
        return int(self._steps[reader])


class StepHealth:
    """A worker's end: counts the steps that went well.

    Args:
        check: raises if a group broke.
        tell: takes the number of steps so far.
        fail: takes the error, on the thread below; it ends the process.
        event: makes an event of the device (torch's); None: steps are made when they return.
    """

    def __init__(
        self,
        check: Callable[[], None],
        tell: Callable[[int], None],
        fail: Callable[[Exception], None],
        *,
        event: Callable[[], Any] | None,
    ) -> None:
        self._check, self._tell, self._fail, self._event = check, tell, fail, event
        self._num_well = 0
        self._launched: SimpleQueue[Any] = SimpleQueue()
        if event is not None:
            threading.Thread(target=self._run, name="step-health", daemon=True).start()

    def note_launched(self) -> None:
        """Take note that the device was given a step.

        Raises:
            EngineError: a group broke in it, where that is known already.
        """
        if self._event is None:
            self._note_made()
            return
        event = self._event()
        event.record()
        self._launched.put(event)

    def close(self) -> None:
        """End the thread, once the device has made what it was given."""
        self._launched.put(None)

    def _note_made(self) -> None:
        self._check()
        self._num_well += 1
        self._tell(self._num_well)

    def _run(self) -> None:
        """Wait for the device beside the thread that launches: steps may follow each other."""
        try:
            while (event := self._launched.get()) is not None:
                event.synchronize()
                self._note_made()
        except Exception as error:
            self._fail(error)
