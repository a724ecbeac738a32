"""The mesh: ranks as points of a grid whose axes are so small that every group is a run of them.

A rank's number is written in digits, the last axis the fastest. Each parallel group is a run of
neighbouring axes, so one rank has a place in every group, and groups of different kinds (attention
over 8 ranks, experts over 4 x 2) overlap cleanly:

    rank 0..7    axes a b c (2 each)    ATTN_TP = a b c    MOE_EP = a b    MOE_TP = c
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


MAX_DEGREE = 1024
MAX_RANKS = 4096
"""Of one replica; also keeps a slip of the finger from a start of a million processes."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """How many ranks each group has.

    Args:
        tp, dp, cp: of attention: heads, requests, query tokens of a step.
        pp: pipeline stages, each with ranks of its own.
        ep: groups of experts; the features of an expert are spread over the other ranks of a stage.
        dense_tp: of dense MLPs; 0: as `tp`.
    """

    tp: int = 1
    dp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    dense_tp: int = 0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            low = 0 if item.name == "dense_tp" else 1
            if not low <= value <= MAX_DEGREE:
                raise ConfigError(
                    f"{item.name} is {value}, allowed is {low} to {MAX_DEGREE}; give a number of "
                    "ranks"
                )
        if self.world > MAX_RANKS:
            raise ConfigError(
                f"the degrees ask for {self.world} ranks, at most {MAX_RANKS} are allowed; lower "
                "one of them"
            )

    @property
    def stage_ranks(self) -> int:
        """Ranks of one stage; attention is computed alike on ranks that only experts need."""
        return max(self.tp * self.dp * self.cp, self.ep, self.dense_tp)

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.pp * self.stage_ranks


@dataclass(frozen=True, slots=True)
class Axis:
    """One digit of a rank's number within its stage.

    Args:
        name: "a", "b", ..., the slowest first.
        size: a prime number.
        stride: ranks from one place to the next.
    """

    name: str
    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks of one replica: stages of equal size, each with the same axes.

    The last stage comes first: rank 0 has the logits.

    Args:
        axes: the slowest first.
        groups: group -> names of its axes, the slowest first; no axes: one rank.
    """

    degrees: Degrees
    axes: tuple[Axis, ...]
    groups: Mapping[ParallelGroup, tuple[str, ...]]

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.degrees.world

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of a rank; the last one holds rank 0."""
        return self.degrees.pp - 1 - rank // self.degrees.stage_ranks

    def size(self, axes: Iterable[str]) -> int:
        """Return the number of ranks that differ in these axes only."""
        return prod(self._axis(name).size for name in axes)

    def place(self, rank: int, axes: Iterable[str]) -> int:
        """Return a rank's place among those that differ in these axes, the slowest given first."""
        place = 0
        for axis in map(self._axis, axes):
            place = place * axis.size + rank // axis.stride % axis.size
        return place

    def peers(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` in these axes only, by their places."""
        own = rank - sum(
            rank // axis.stride % axis.size * axis.stride for axis in map(self._axis, axes)
        )
        ranks = [own]
        for axis in map(self._axis, axes):
            ranks = [first + place * axis.stride for first in ranks for place in range(axis.size)]
        return tuple(ranks)

    def _axis(self, name: str) -> Axis:
        return next(axis for axis in self.axes if axis.name == name)


def build_mesh(degrees: Degrees) -> Mesh:
    """Cut a stage's ranks into axes.

    Raises:
        ConfigError: the degrees do not nest; names them.
    """
    attention = degrees.tp * degrees.cp * degrees.dp
    spans = {
        ParallelGroup.ATTN_TP: (1, degrees.tp),
        ParallelGroup.ATTN_CP: (degrees.tp, degrees.tp * degrees.cp),
        ParallelGroup.ATTN_DP: (degrees.tp * degrees.cp, attention),
        ParallelGroup.DENSE_TP: (1, degrees.dense_tp or degrees.tp),
        ParallelGroup.MOE_TP: (1, degrees.stage_ranks // degrees.ep),
        ParallelGroup.MOE_EP: (degrees.stage_ranks // degrees.ep, degrees.stage_ranks),
        ParallelGroup.VOCAB_TP: (1, degrees.tp),
    }
    bounds = sorted({1, degrees.stage_ranks, *(bound for span in spans.values() for bound in span)})
    _check_nested(degrees, bounds)
    axes = tuple(_axes(bounds))
    groups = {
        group: tuple(axis.name for axis in axes if low <= axis.stride < high)
        for group, (low, high) in spans.items()
    }
    return Mesh(degrees, axes, groups)


def _check_nested(degrees: Degrees, bounds: Sequence[int]) -> None:
    uneven = degrees.stage_ranks % degrees.ep
    if uneven or any(high % low for low, high in pairwise(bounds)):
        given = ", ".join(f"{item.name} {getattr(degrees, item.name)}" for item in fields(degrees))
        raise ConfigError(
            f"{given} do not fit together: a stage has {degrees.stage_ranks} ranks, and of any two "
            "groups in it the smaller must divide the larger; use powers of one number"
        )


def _axes(bounds: Sequence[int]) -> Iterator[Axis]:
    """Yield the axes, the slowest first: the prime factors between neighbouring bounds."""
    sizes = [
        (size, low) for low, high in pairwise(bounds) for size, low in _primes(high // low, low)
    ]
    for index, (size, stride) in enumerate(reversed(sizes)):
        yield Axis(chr(ord("a") + index), size, stride)


def _primes(number: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield (prime factor, stride), the fastest first."""
    factor = 2
    while number > 1:
        while number % factor == 0:
            yield factor, stride
            number, stride = number // factor, stride * factor
        factor += 1
