"""Trials of suspects: requests from a fatal step run again one at a time.

A step is fatal that ended the engine before this one, or failed in this one. A suspect that comes
back while another is on trial is held until that one has got past its output position in the fatal
step, or has ended. Innocent requests pass at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.engine.channel import Client
    from tokenspeed.engine.messages import Submit


class SuspectGate:
    """Decides when a resubmitted suspect may enter. Thread: the engine's only."""

    def __init__(self, positions: Mapping[str, int]) -> None:
        self.positions = dict(positions)
        self._on_trial: str | None = None
        self._held: deque[tuple[Client, Submit]] = deque()

    def is_suspect(self, request_id: str) -> bool:
        """Say whether a request has not got past a fatal step since."""
        return request_id in self.positions

    def suspect(self, request_id: str, position: int) -> None:
        """Suspect a request.

        Args:
            position: output index that the fatal step was to fill.
        """
        self.positions[request_id] = position

    def hold(self, client: Client, message: Submit) -> None:
        """Hold a suspect that found no place, though it may enter; it comes next."""
        self._on_trial = None
        self._held.appendleft((client, message))

    @property
    def num_held(self) -> int:
        """Suspects that wait for their trial."""
        return len(self._held)

    def admits(self, client: Client, message: Submit) -> bool:
        """Say whether the request may enter now; else it is held here."""
        if message.request_id not in self.positions:
            return True
        if self._on_trial is None:
            self._on_trial = message.request_id
            return True
        self._held.append((client, message))
        return False

    def note_progress(self, request_id: str, num_outputs: int) -> None:
        """Clear the request on trial when its output has grown past the fatal position."""
        if request_id == self._on_trial and num_outputs > self.positions[request_id]:
            self.note_end(request_id)

    def note_end(self, request_id: str) -> None:
        """Forget a request that ended, was refused or given up."""
        if self.positions.pop(request_id, None) is None:
            return
        if request_id == self._on_trial:
            self._on_trial = None
        self._held = deque(item for item in self._held if item[1].request_id != request_id)

    def next_held(self) -> tuple[Client, Submit] | None:
        """Return the next suspect when none is on trial; it still has to pass `admits`."""
        return self._held.popleft() if self._on_trial is None and self._held else None
