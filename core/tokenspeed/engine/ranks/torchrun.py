"""Ranks that torchrun starts: the same command everywhere, told apart by environment variables.

    torchrun --nproc-per-node 2 -m tokenspeed serve MODEL --launcher torchrun --tp 2

Rank 0 becomes the server and says in torchrun's own store where it listens; every other rank reads
it there and becomes an agent.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.engine.ranks.source import RankAddress, listen_for_ranks
from tokenspeed.env import torchrun_variables
from tokenspeed.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from tokenspeed.env import TorchrunVariables

_ADVICE = "start it as `torchrun --nproc-per-node N -m tokenspeed serve MODEL --launcher torchrun`"


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
    """The store in which rank 0 says where it listens. It must live as long as rank 0.

    Args:
        timeout_s: longest that the ranks wait for it, and for the address.
    Raises:
        EngineError: nobody serves the store within that time.
    """

    def __init__(self, variables: TorchrunVariables, timeout_s: float) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._variables, self._timeout_s = variables, timeout_s
        self._key = f"tokenspeed/{variables.run_id}/{variables.restarts}"
        with self._errors_named():
            self._store: TCPStore = TCPStore(
                variables.master_host,
                variables.master_port,
                is_master=variables.rank == 0 and not variables.has_store,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
            )

    def open(self) -> tuple[socket.socket, RankAddress]:
        """Listen as rank 0, and tell the others."""
        listener, address = listen_for_ranks(self._variables.master_host)
        self._store.set(self._key, msgspec.json.encode(address).decode())
        return listener, address

    def address(self) -> RankAddress:
        """Wait for rank 0's address.

        Raises:
            EngineError: it does not come within the time.
        """
        with self._errors_named():
            return msgspec.json.decode(self._store.get(self._key), type=RankAddress)

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            found = self._variables
            first = str(error).partition("\n")[0]
            raise EngineError(
                f"rank {found.rank} does not meet rank 0 at {found.master_host}:"
                f"{found.master_port} within {self._timeout_s:g} s ({first}); start rank 0's host, "
                "correct --master-addr and --master-port of torchrun, or raise --start-timeout-s"
            ) from error
