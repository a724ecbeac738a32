"""A mesh of ranks that are threads of this process: any program runs on CPU, communicators and all.

A rank that raises takes the others with it; its own error is the one that is raised here.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

from tokenspeed.errors import EngineError
from tokenspeed.executor.connections import GroupConnections
from tokenspeed_reference.communicator import ThreadCommunicator

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.placement.mesh import Mesh

Result = TypeVar("Result")
TIMEOUT_S = 60.0


def on_ranks(mesh: Mesh, work: Callable[[int, GroupConnections], Result]) -> list[Result]:
    """Do the work of every rank at once; return the results by rank."""
    rendezvous = uuid.uuid4().hex
    device = torch.device("cpu")

    def one(rank: int) -> Result:
        connections = GroupConnections(
            mesh, rank, ThreadCommunicator,
            rendezvous=rendezvous, device=device, timeout_s=TIMEOUT_S,
        )  # fmt: skip
        try:
            result = work(rank, connections)
        except BaseException as error:
            connections.abort(repr(error))
            raise
        connections.close()
        return result

    with ThreadPoolExecutor(mesh.world) as pool:
        futures = [pool.submit(one, rank) for rank in range(mesh.world)]
        errors = [error for future in futures if (error := future.exception()) is not None]
    causes = [error for error in errors if not isinstance(error, EngineError)]
    for error in (causes or errors)[:1]:
        raise error
    return [future.result() for future in futures]
