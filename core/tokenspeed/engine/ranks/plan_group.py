"""How plans get to ranks on other hosts: by broadcasts of a communicator over host memory.

    frame    FRAME_BYTES: length of the message (int64), then as much of it as fits
    rest     what did not fit, as long as the frame says

The group is rank 0 and the ranks that are on other hosts; those of rank 0's host read the ring. It
waits for weeks: an engine may have nothing to do, and who fails is found by the watch over the
ranks, and by the group where a rank dies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.engine.ranks.group_seat import GroupSeat
from tokenspeed.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.engine.choices import Choices
    from tokenspeed.engine.ranks.place import Place

FRAME_BYTES = 4096
"""A decode step's plan fits; a short broadcast of any size takes as long."""
HEAD_BYTES = 8
WAIT_S = 2e6
"""Longest wait for a plan, 23 days: in milliseconds it fits where transports keep 32 bits."""


class PlansLost(EngineError):
    """The group that brings plans broke: a rank is gone, which the watch names."""


class PlanGroup:
    """One rank's end; rank 0 sends, all others receive.

    Args:
        communicator: over host memory.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._frame = np.zeros(FRAME_BYTES, dtype=np.uint8)

    def send(self, message: bytes) -> None:
        """Send to every other rank of the group; waits until they have come for it.

        Raises:
            OSError: one is gone.
        """
        data = np.frombuffer(message, dtype=np.uint8)
        first = data[: FRAME_BYTES - HEAD_BYTES]
        self._frame[:HEAD_BYTES].view(np.int64)[0] = len(data)
        self._frame[HEAD_BYTES : HEAD_BYTES + len(first)] = first
        try:
            self._broadcast(self._frame)
            if len(data) > len(first):
                self._broadcast(data[len(first) :].copy())
        except EngineError as error:
            raise ConnectionError(str(error)) from error

    def receive(self) -> bytes:
        """Return the next message.

        Raises:
            PlansLost: rank 0 is gone, or another rank of the group.
        """
        try:
            frame = self._broadcast(self._frame)
            length = int(frame[:HEAD_BYTES].view(np.int64)[0])
            rest = length - (FRAME_BYTES - HEAD_BYTES)
            if rest <= 0:
                return frame[HEAD_BYTES : HEAD_BYTES + length].tobytes()
            tail = self._broadcast(np.zeros(rest, dtype=np.uint8))
            return frame[HEAD_BYTES:].tobytes() + tail.tobytes()
        except EngineError as error:
            raise PlansLost(f"no plan comes any more: {error}") from error

    def close(self) -> None:
        """Leave the group."""
        self._communicator.close()

    def _broadcast(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        import torch

        found: torch.Tensor = self._communicator.broadcast(torch.from_numpy(data))
        return found.numpy()


def join_plan_group(choices: Choices, place: Place, ranks: Sequence[int]) -> PlanGroup:
    """Join the group of these ranks; all of them call it.

    Raises:
        CapabilityError: no loaded plugin moves host memory between hosts.
        EngineError: a rank did not come.
    """
    seat = GroupSeat(
        rank=ranks.index(place.rank),
        size=len(ranks),
        rendezvous=f"{place.rendezvous}-plans",
        name="plans",
        hosts=place.num_hosts,
        timeout_s=WAIT_S,
    )
    return PlanGroup(choices.host_communicator(seat))
