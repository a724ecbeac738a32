"""What each rank calls so that all together compute a collective operator.

`calls_of("collective.all_gather", inputs_P)` is one (method, arguments, options) a rank: what
compares communicators with the definitions of `collectives.py`, in threads or in processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A method's name, its arguments, and its options."""


def calls_of(operator: str, *args: Any, **options: Any) -> list[Call]:
    """Return each rank's call for the operator's arguments.

    Args:
        operator: name of a collective operator.
    """
    return CALLS[operator](*args, **options)


def _all_reduce(inputs_P: Sequence[torch.Tensor], *, reduction: str = "sum") -> list[Call]:
    return [("all_reduce", (x,), {"reduction": reduction}) for x in inputs_P]


def _all_gather(inputs_P: Sequence[torch.Tensor]) -> list[Call]:
    sizes = [len(x) for x in inputs_P]
    return [("all_gather", (x,), {"sizes": sizes}) for x in inputs_P]


def _reduce_scatter(inputs_P: Sequence[torch.Tensor], sizes_P: Sequence[int]) -> list[Call]:
    return [("reduce_scatter", (x,), {"sizes": list(sizes_P)}) for x in inputs_P]


def _all_to_all(inputs_P: Sequence[torch.Tensor], sizes_PP: Sequence[Sequence[int]]) -> list[Call]:
    return [
        (
            "all_to_all",
            (x,),
            {
                "send_sizes": list(sizes_PP[rank]),
                "receive_sizes": [sizes[rank] for sizes in sizes_PP],
            },
        )
        for rank, x in enumerate(inputs_P)
    ]


def _broadcast(inputs_P: Sequence[torch.Tensor], root: int) -> list[Call]:
    return [("broadcast", (x,), {"root": root}) for x in inputs_P]


CALLS: Mapping[str, Callable[..., list[Call]]] = {
    "collective.all_reduce": _all_reduce,
    "collective.all_gather": _all_gather,
    "collective.reduce_scatter": _reduce_scatter,
    "collective.all_to_all": _all_to_all,
    "collective.broadcast": _broadcast,
}
"""Collective operator -> its calls."""
