"""The load of experts in all pipeline stages, for pictures and figures of the engine.

Rank 0 counts its own stage's; of every other stage one rank tells rank 0 what it has counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.engine.messages import ExpertFigures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tokenspeed.placement.expert_load import ExpertLoad


class ExpertLoads:
    """Those of all stages.

    Args:
        own: of rank 0's stage; None: it has no experts.
        told: returns what the other stages said last.
    """

    def __init__(self, own: ExpertLoad | None, told: Callable[[], Iterable[ExpertLoad]]) -> None:
        self._own = own
        self._told = told

    def shown(self) -> dict[str, Any]:
        """Return them as plain data, layers in their order."""
        stages = self._stages()
        return {
            "times": sum(load.times for load in stages),
            "rebalanced": sum(load.rebalanced for load in stages),
            "moved": sum(load.moved for load in stages),
            "layers": {name: value for load in stages for name, value in load.shown().items()},
        }

    def figures(self) -> tuple[ExpertFigures, ...]:
        """Return the figures of each stage."""
        return tuple(_figures(load) for load in self._stages())

    def _stages(self) -> list[ExpertLoad]:
        """Return those that have experts, by their first layer."""
        own = () if self._own is None else (self._own,)
        found = [load for load in (*own, *self._told()) if load.counts]
        return sorted(found, key=lambda load: min(load.counts))


def _figures(load: ExpertLoad) -> ExpertFigures:
    peaks = [load.peaks.get(layer, 1.0) for layer in load.counts]
    return ExpertFigures(
        layers=f"{min(load.counts)}-{max(load.counts)}",
        imbalance=max(peaks),
        imbalance_mean=sum(peaks) / len(peaks),
        looks=load.times,
        rebalances=load.rebalanced,
        moved=load.moved,
    )
