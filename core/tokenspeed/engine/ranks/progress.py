"""How far a rank is: steps done and collectives entered, counted so that others can compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.contracts.communicator import Communicator

COLLECTIVES = frozenset(
    {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "barrier",
        "send",
        "receive",
        "all_reduce_add_rms_norm",
    }
)


@dataclass(slots=True)
class RankProgress:
    """A rank's own counts. Thread: the rank's writes, others may read."""

    steps: int = 0
    calls: int = 0


class CountedCommunicator:
    """A communicator whose collectives are counted when they begin and when they end."""

    def __init__(self, communicator: Communicator, progress: RankProgress) -> None:
        self._communicator = communicator
        self._progress = progress
        self.rank, self.size = communicator.rank, communicator.size
        self.features = communicator.features

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._communicator, name)
        if name in COLLECTIVES:
            found = self._counted(found)
            setattr(self, name, found)  # the next call finds it without this
        return found

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        progress = self._progress

        def counted(*args: Any, **options: Any) -> Any:
            progress.calls += 1
            result = call(*args, **options)
            progress.calls += 1
            return result

        return counted
