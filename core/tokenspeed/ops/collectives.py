"""Collectives: what N ranks get when each brings a tensor. Written for all ranks at once.

A communicator (`contracts/communicator.py`) gives each rank its own part of the result. Tensors are
joined and cut along their first axis, of sizes that may differ and may be 0.
Legend: P ranks, S rows of one rank, D features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops.declare import EXACT, operator
from tokenspeed.ops.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from tokenspeed.contracts.kernel import Domain

SIZES = {
    "one rank": (3,),
    "one rank, nothing": (0,),
    "equal": (4, 4),
    "uneven": (5, 1, 2),
    "some have nothing": (0, 3, 0, 7),
    "nobody has anything": (0, 0),
    "five ranks": (1, 2, 3, 4, 5),
}


def _reduce_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for ranks, shape in ((1, (3, 4)), (2, (5, 7)), (3, (1,)), (5, (2, 3, 4)), (4, (0, 8))):
        for reduction in ("sum", "max"):
            inputs = [draw.floats(*shape) for _ in range(ranks)]
            yield Case(f"{reduction} of {ranks} x {shape}", (inputs,), {"reduction": reduction})


def _gather_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for name, sizes in SIZES.items():
        yield Case(name, ([draw.floats(size, 6) for size in sizes],))


def _scatter_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for name, sizes in SIZES.items():
        yield Case(name, ([draw.floats(sum(sizes), 6) for _ in sizes], sizes))


def _exchange_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for ranks, high in ((1, 3), (2, 1), (2, 4), (3, 5), (5, 3)):
        sizes = draw.integers(0, high, ranks, ranks).tolist()
        inputs = [draw.floats(sum(row), 5) for row in sizes]
        yield Case(f"{ranks} ranks, up to {high - 1} rows each", (inputs, sizes))


def _broadcast_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for ranks, root in ((1, 0), (2, 1), (4, 2)):
        yield Case(f"{root} of {ranks}", ([draw.floats(3, 5) for _ in range(ranks)], root))
    yield Case("nothing", ([draw.floats(0, 5) for _ in range(2)], 0))


@operator(
    "collective.all_reduce",
    cases=_reduce_cases,
    slot="communicator",
    overwrites=("inputs_P",),
    placement="- ->",
)
def all_reduce(inputs_P: Sequence[torch.Tensor], *, reduction: str = "sum") -> list[torch.Tensor]:
    """Give every rank the sum, or the largest, of what all ranks bring, element by element.

    Sums are taken in the order of the ranks in float32 or wider: every rank gets the same bits.

    Args:
        inputs_P: a tensor a rank, all of one shape and float dtype, device. May be overwritten.
        reduction: "sum" or "max".
    Returns:
        One tensor a rank, shape and dtype of the inputs.
    Source: MPI: A Message-Passing Interface Standard 4.1, section 6.9 (MPI_Allreduce).
    """
    total = inputs_P[0].clone()
    for other in inputs_P[1:]:
        total = total + other if reduction == "sum" else total.maximum(other)
    return [total for _ in inputs_P]


@operator(
    "collective.all_gather",
    tolerance=EXACT,
    cases=_gather_cases,
    slot="communicator",
    placement="- ->",
)
def all_gather(inputs_P: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Give every rank what all ranks bring, one after another in the order of the ranks.

    Args:
        inputs_P: (S, D) a rank, any dtype, device; S may differ.
    Returns:
        (sum of S, D) a rank.
    Source: MPI 4.1, section 6.7 (MPI_Allgatherv).
    """
    import torch

    return [torch.cat(list(inputs_P)) for _ in inputs_P]


@operator(
    "collective.reduce_scatter",
    cases=_scatter_cases,
    slot="communicator",
    placement="-, - ->",
)
def reduce_scatter(inputs_P: Sequence[torch.Tensor], sizes_P: Sequence[int]) -> list[torch.Tensor]:
    """Sum what all ranks bring, and give each rank its rows of the sum.

    Args:
        inputs_P: (sum of sizes, D) float a rank, one shape and dtype, device.
        sizes_P: rows that each rank gets, in the order of the ranks.
    Returns:
        (sizes[r], D) for rank r; summed as `collective.all_reduce` does.
    Source: MPI 4.1, section 6.10 (MPI_Reduce_scatter).
    """
    total = all_reduce.signature(inputs_P)[0]
    return list(total.split_with_sizes(list(sizes_P)))


@operator(
    "collective.all_to_all",
    tolerance=EXACT,
    cases=_exchange_cases,
    slot="communicator",
    placement="-, - ->",
)
def all_to_all(
    inputs_P: Sequence[torch.Tensor], sizes_PP: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Give each rank the rows that every rank has for it, in the order of the ranks they come from.

    Args:
        inputs_P: (sum of sizes[r], D) for rank r, any dtype, device.
        sizes_PP: rows that rank r has for rank s, in the order of s.
    Returns:
        (sum over r of sizes[r][s], D) for rank s.
    Source: MPI 4.1, section 6.8 (MPI_Alltoallv).
    """
    import torch

    parts = [x.split_with_sizes(list(sizes)) for x, sizes in zip(inputs_P, sizes_PP, strict=True)]
    return [torch.cat([part[target] for part in parts]) for target in range(len(parts))]


@operator(
    "collective.broadcast",
    tolerance=EXACT,
    cases=_broadcast_cases,
    slot="communicator",
    placement="-, - ->",
)
def broadcast(inputs_P: Sequence[torch.Tensor], root: int) -> list[torch.Tensor]:
    """Give every rank what one rank brings.

    Args:
        inputs_P: a tensor a rank, all of one shape and dtype, device; only the root's counts.
        root: the rank whose tensor it is.
    Returns:
        One tensor a rank.
    Source: MPI 4.1, section 6.4 (MPI_Bcast).
    """
    return [inputs_P[root].clone() for _ in inputs_P]
