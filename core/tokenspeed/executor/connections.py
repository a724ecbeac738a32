"""Connections: the communicators of one rank, one for every set of ranks that its program needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.placement.mesh import Mesh


class GroupConnections:
    """Makes communicators when they are first asked for; satisfies executor.program.Connections.

    All ranks of a set must ask for it, in the same order as for others that they share.

    Args:
        load: the chosen communicator offer's, see contracts.communicator.
        rendezvous: text that all ranks of this start share and no other start uses.
    """

    def __init__(
        self,
        mesh: Mesh,
        rank: int,
        load: Callable[..., Communicator],
        *,
        rendezvous: str,
        device: torch.device,
        timeout_s: float,
    ) -> None:
        self._mesh = mesh
        self._rank = rank
        self._load = load
        self._rendezvous = rendezvous
        self._device = device
        self._timeout_s = timeout_s
        self._by_ranks: dict[tuple[int, ...], Communicator] = {}

    def over(self, axes: tuple[str, ...]) -> Communicator:
        """Return that of the ranks of this stage that differ in these axes, by their places."""
        return self._of(self._mesh.peers(self._rank, axes))

    def between(self, stage: int) -> Communicator:
        """Return that of two ranks with one place in a stage (rank 0 of it) and in the next."""
        stage_ranks = self._mesh.degrees.stage_ranks
        sender = self._rank + (self._mesh.stage(self._rank) - stage) * stage_ranks
        return self._of((sender, sender - stage_ranks))

    @property
    def tells_late(self) -> bool:
        """Whether a group may break without a call of this rank that raises."""
        return any(map(tells_late, self._by_ranks.values()))

    def check(self) -> None:
        """Raise if a group broke: what its calls gave since the last check is worth nothing.

        Called once the event behind a step has passed; only groups whose calls return before the
        device has made them have something to tell then.
        """
        for communicator in self._by_ranks.values():
            check_late(communicator)

    def close(self) -> None:
        """Leave all groups in peace."""
        for communicator in self._by_ranks.values():
            communicator.close()

    def abort(self, reason: str) -> None:
        """Leave all groups because of a failure: the other ranks' calls raise with this reason."""
        for communicator in self._by_ranks.values():
            communicator.abort(reason)

    def _of(self, ranks: tuple[int, ...]) -> Communicator:
        if ranks not in self._by_ranks:
            self._by_ranks[ranks] = self._load(
                rank=ranks.index(self._rank),
                size=len(ranks),
                rendezvous=f"{self._rendezvous}/{'-'.join(map(str, ranks))}",
                device=self._device,
                timeout_s=self._timeout_s,
            )
        return self._by_ranks[ranks]


def tells_late(communicator: Communicator) -> bool:
    """Say whether errors of its calls may come after them."""
    return "late_errors" in communicator.features


def check_late(communicator: Communicator) -> None:
    """Raise what a communicator with the feature "late_errors" has to tell of calls made before."""
    if tells_late(communicator):
        communicator.check()  # type: ignore[attr-defined]
