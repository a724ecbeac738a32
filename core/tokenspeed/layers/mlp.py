"""The gated feed-forward block: down(act(gate(x)) * up(x)), gate and up fused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.layers.linear import Linear
from tokenspeed.layers.placements import column_parallel, row_parallel
from tokenspeed.ops import activation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.model import ModelContext
    from tokenspeed.layers.weights import WeightSlot


class GatedMLP:
    """A gated MLP with checkpoint names gate_proj, up_proj, down_proj.

    Args:
        activate: (T, 2 F) to (T, F), gate in [0, F), up in [F, 2 F), such as the bound kernel of
            `activation.gelu_mul`; None: that of `activation.silu_mul`.
    """

    def __init__(
        self,
        context: ModelContext,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool = False,
        group: ParallelGroup = ParallelGroup.DENSE_TP,
        activate: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.gate_up = Linear(
            context,
            hidden_size,
            (intermediate_size, intermediate_size),
            bias=bias,
            spread=column_parallel(group),
        )
        self.down = Linear(
            context, intermediate_size, (hidden_size,), bias=bias, spread=row_parallel(group)
        )
        self._activate: Callable[..., torch.Tensor] = activate or context.kernels.bind(
            activation.silu_mul
        )

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots below module `name`."""
        yield from self.gate_up.weight_slots(f"{name}.gate_proj", f"{name}.up_proj")
        yield from self.down.weight_slots(f"{name}.down_proj")

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return (T, D)."""
        return self.down(self._activate(self.gate_up(x_TD)))
