"""A rank's place in a group of ranks, as the choice of its communicator needs it."""

from __future__ import annotations

from dataclasses import dataclass

RANKS_TIMEOUT_S = 60.0
"""Longest that a rank waits for the others in a collective."""


@dataclass(frozen=True, slots=True)
class GroupSeat:
    """One rank of one group.

    Args:
        name: of the group, such as "attn_tp"; "": the start has only one.
        rendezvous: text that the group's ranks share and no other group uses; of several machines
            "tcp://HOST:PORT/NAME". "": a group of one.
        hosts: machines that the ranks are on.
        processes: ranks are processes; False: threads of this one.
        timeout_s: longest wait for another rank.
    """

    rank: int = 0
    size: int = 1
    rendezvous: str = ""
    name: str = ""
    hosts: int = 1
    processes: bool = True
    timeout_s: float = RANKS_TIMEOUT_S

    def traits(self) -> dict[str, object]:
        """Return what the group asks of a communicator."""
        between = "processes" if self.processes and self.size > 1 else "threads"
        return {"ranks": between, "hosts": self.hosts}

    def wishes(self) -> dict[str, object]:
        """Return what decides between offers that can do it alike."""
        return {"ranks": self.traits()["ranks"]}


ALONE = GroupSeat()
