"""What is known of how the experts of a pipeline stage are used: counts, places, imbalance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ExpertLoad:
    """Of the experts of one stage since the start; written between steps, read by any thread.

    The layers are those of the start; values are replaced, never changed.

    Args:
        counts: layer -> choices of each expert.
        placements: layer -> the expert in each slot of all ranks.
        peaks: layer -> choices of the busiest rank over those of the average one, of the last
            interval, as they were placed then.
        times: looks at a layer.
        rebalanced: those after which experts moved.
        moved: experts' weights that went to another slot.
    """

    counts: dict[int, list[int]] = field(default_factory=dict)
    placements: dict[int, tuple[int, ...]] = field(default_factory=dict)
    peaks: dict[int, float] = field(default_factory=dict)
    times: int = 0
    rebalanced: int = 0
    moved: int = 0

    def shown(self) -> dict[str, Any]:
        """Return the layers as plain data."""
        return {
            str(layer): {
                "counts": list(counts),
                "slots": list(self.placements[layer]),
                "peak": round(self.peaks.get(layer, 1.0), 3),
            }
            for layer, counts in self.counts.items()
        }
