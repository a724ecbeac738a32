"""Ranks that torchrun starts: the same command everywhere, told apart by environment variables.

    torchrun --nproc-per-node 2 -m tokenspeed serve MODEL --launcher torchrun --tp 2

Rank 0 becomes the server and says in torchrun's own store where it listens; every other rank reads
it there and becomes an agent.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.engine.ranks.source import RankAddress, listen_for_ranks
from tokenspeed.env import torchrun_variables
from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    import socket

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from tokenspeed.env import TorchrunVariables

_ADVICE = "start it as `torchrun --nproc-per-node N -m tokenspeed serve MODEL --launcher torchrun`"
MEET_S = 300.0
"""Longest that the ranks wait for rank 0's address; hosts are started by hand at times."""


def torchrun_place(world: int) -> TorchrunVariables:
    """Return what torchrun says of this process.

    Raises:
        ConfigError: it was not started by torchrun, or with another number of ranks.
    """
    try:
        found = torchrun_variables()
    except ValueError as error:
        raise ConfigError(f"launcher is torchrun, and {error}; {_ADVICE}") from None
    if found is None:
        raise ConfigError(
            "launcher is torchrun, and RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not all "
            f"set; {_ADVICE}"
        )
    if found.world != world:
        raise ConfigError(
            f"torchrun started {found.world} ranks, the settings ask for {world} (tp x dp x cp x "
            "pp, or more for experts); give both the same number"
        )
    for name, value, high in (
        ("RANK", found.rank, world - 1),
        ("MASTER_PORT", found.master_port, 65535),
    ):
        if not 0 <= value <= high:
            raise ConfigError(
                f"launcher is torchrun, and {name} is {value}, allowed is 0 to {high}; {_ADVICE}"
            )
    return found


class TorchrunMeeting:
    """The store in which rank 0 says where it listens. It must live as long as rank 0."""

    def __init__(self, variables: TorchrunVariables) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._variables = variables
        self._key = f"tokenspeed/{variables.run_id}/{variables.restarts}"
        self._store: TCPStore = TCPStore(
            variables.master_host,
            variables.master_port,
            is_master=variables.rank == 0 and not variables.has_store,
            wait_for_workers=False,
            timeout=timedelta(seconds=MEET_S),
        )

    def open(self) -> tuple[socket.socket, RankAddress]:
        """Listen as rank 0, and tell the others."""
        listener, address = listen_for_ranks(self._variables.master_host)
        self._store.set(self._key, msgspec.json.encode(address).decode())
        return listener, address

    def address(self) -> RankAddress:
        """Wait for rank 0's address."""
        return msgspec.json.decode(self._store.get(self._key), type=RankAddress)
