"""A communicator that gives each call to the one of several that was fastest for its size.

All of them are of the same ranks. What has no size, or was not measured, goes to the first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tokenspeed.contracts.communicator import OPTIONAL_METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.engine.ranks.message_sizes import Table

FUSED = "all_reduce_add_rms_norm"
Steps = tuple[tuple[int, "Communicator"], ...]


class SizedCommunicator:
    """One rank's end; satisfies contracts.Communicator.

    Args:
        base: PLUGIN/NAME of the one for what is not in the table.
        communicators: by PLUGIN/NAME.
        table: the same on every rank.
    """

    def __init__(self, base: str, communicators: Mapping[str, Communicator], table: Table) -> None:
        self._base = communicators[base]
        self._all = tuple(communicators.values())
        self.rank, self.size = self._base.rank, self._base.size
        self._steps: dict[str, Steps] = {
            operation: tuple((most, communicators[pin]) for most, pin in steps)
            for operation, steps in table.items()
        }
        self._fusing = [item for item in self._all if FUSED in item.features]
        self.features = _features(self._base, self._all)

    def all_reduce(self, x: torch.Tensor, *, reduction: str = "sum") -> torch.Tensor:
        """Reduce by the one for the tensor's size."""
        chosen = self._for("all_reduce", x.numel() * x.element_size())
        return chosen.all_reduce(x, reduction=reduction)

    def all_gather(self, x: torch.Tensor, *, sizes: Sequence[int] | None = None) -> torch.Tensor:
        """Join by the one for the largest rank's size."""
        rows = len(x) if sizes is None else max(sizes, default=0)
        num_bytes = rows * math.prod(x.shape[1:]) * x.element_size()
        return self._for("all_gather", num_bytes).all_gather(x, sizes=sizes)

    def reduce_scatter(
        self, x: torch.Tensor, *, sizes: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Reduce by the one for the tensor's size."""
        chosen = self._for("reduce_scatter", x.numel() * x.element_size())
        return chosen.reduce_scatter(x, sizes=sizes)

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Reduce, add and normalise by one that has it, the one for the size if that does."""
        chosen = self._for("all_reduce", x.numel() * x.element_size())
        if chosen not in self._fusing:
            chosen = self._fusing[0]
        result: tuple[torch.Tensor, torch.Tensor] = getattr(chosen, FUSED)(
            x, residual, weight, eps=eps
        )
        return result

    def all_to_all(
        self, x: torch.Tensor, *, send_sizes: Sequence[int], receive_sizes: Sequence[int]
    ) -> torch.Tensor:
        """Exchange rows."""
        return self._base.all_to_all(x, send_sizes=send_sizes, receive_sizes=receive_sizes)

    def broadcast(self, x: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        """Take the root's tensor."""
        return self._base.broadcast(x, root=root)

    def send(self, x: torch.Tensor, *, to: int) -> None:
        """Give a tensor to a rank."""
        self._base.send(x, to=to)  # type: ignore[attr-defined]

    def receive(self, x: torch.Tensor, *, source: int) -> torch.Tensor:
        """Fill a tensor with what a rank sends."""
        result: torch.Tensor = self._base.receive(x, source=source)  # type: ignore[attr-defined]
        return result

    def barrier(self) -> None:
        """Meet everybody."""
        self._base.barrier()

    def check(self) -> None:
        """Raise if one of the groups broke."""
        for communicator in self._all:
            if "late_errors" in communicator.features:
                communicator.check()  # type: ignore[attr-defined]

    def abort(self, reason: str) -> None:
        """Leave all because of a failure."""
        for communicator in self._all:
            communicator.abort(reason)

    def close(self) -> None:
        """Leave all in peace."""
        for communicator in self._all:
            communicator.close()

    def _for(self, operation: str, num_bytes: int) -> Communicator:
        for most_bytes, communicator in self._steps.get(operation, ()):
            if num_bytes <= most_bytes or most_bytes == 0:
                return communicator
        return self._base


def _features(base: Communicator, everybody: Sequence[Communicator]) -> frozenset[str]:
    """Return what holds of the whole: a method one has is enough, a property all must have."""
    has_any = {name for item in everybody for name in item.features if name in OPTIONAL_METHODS}
    has_any -= {"send_receive"} - base.features
    of_all = frozenset.intersection(*(item.features for item in everybody))
    return frozenset(has_any | of_all)
