"""What one rank of a mesh holds: told to the layers of its model while it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.contracts.placement import ParallelGroup
    from tokenspeed.placement.mesh import Mesh


@dataclass(frozen=True, slots=True)
class RankShards:
    """Satisfies `contracts.placement.Shards`.

    Args:
        layers: decoder layers of the rank's pipeline stage.
        spare_experts: slots of a rank beyond its share of experts; None: experts never move.
    """

    mesh: Mesh
    rank: int
    layers: range
    spare_experts: int | None = None

    @property
    def is_first_stage(self) -> bool:
        """Whether the rank's pipeline stage has the embedding."""
        return self.mesh.stage(self.rank) == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether the rank's pipeline stage has the final norm and the head."""
        return self.mesh.stage(self.rank) == self.mesh.degrees.pp - 1

    def holds_layer(self, layer: int) -> bool:
        """Say whether a decoder layer is part of the rank's pipeline stage."""
        return layer in self.layers

    def place(self, group: ParallelGroup, units: int) -> tuple[int, int]:
        """Return (parts that so many equal units are cut into, which of them is the rank's)."""
        axes = self.mesh.groups[group]
        count = next(
            number
            for number in range(len(axes), -1, -1)
            if units % self.mesh.size(axes[:number]) == 0
        )
        return self.mesh.size(axes[:count]), self.mesh.place(self.rank, axes[:count])
