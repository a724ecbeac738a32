"""Runs one call on several ranks of a communicator, each in a thread of its own.

For comparing communicators with the definitions of `collectives.py`: a rank that raises leaves its
group, so that the others get an error in place of waiting for it.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.contracts.communicator import Communicator

TIMEOUT_S = 20.0
_NUMBERS = itertools.count()
Part = TypeVar("Part")


def on_ranks(
    load: Callable[..., Communicator],
    inputs_P: Sequence[Any],
    call: Callable[[Communicator, Any], Part],
    *,
    timeout_s: float = TIMEOUT_S,
) -> list[Part]:
    """Return what `call` returns on each rank for its input; the group is made anew and closed.

    Raises:
        Exception: what the first rank that failed raised.
    """
    size, rendezvous = len(inputs_P), f"ranks-{os.getpid()}-{next(_NUMBERS)}"
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        import torch

        try:
            ranks = load(
                rank=rank,
                size=size,
                rendezvous=rendezvous,
                device=torch.device("cpu"),
                timeout_s=timeout_s,
            )
        except Exception as error:
            failures.append(error)
            return
        try:
            results[rank] = call(ranks, inputs_P[rank])
            ranks.close()
        except Exception as error:
            failures.append(error)
            ranks.abort(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results
