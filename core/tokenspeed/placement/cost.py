"""What a collective costs: the latency of its link and the bytes that one rank sends.

    time = latency + bytes / bandwidth        a step of so many tokens, ring figures of bytes

Ranks of one host are neighbours; a group within a host uses the fast link, any other the slow one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.errors import ConfigError
from tokenspeed.placement.layout import TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.placement.layout import Layout
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.program import Move


@dataclass(frozen=True, slots=True)
class Link:
    """What connects the ranks of a group.

    Args:
        latency_us: of one collective, whatever its size.
        gbytes_per_s: what one rank sends, 1e9 bytes.
    """

    latency_us: float
    gbytes_per_s: float

    def __post_init__(self) -> None:
        if self.latency_us < 0 or self.gbytes_per_s <= 0:
            raise ConfigError(
                f"a link of {self.latency_us} us and {self.gbytes_per_s} GB/s cannot be; latency "
                "is 0 or more and bandwidth above 0; give measured figures"
            )

    def time_us(self, num_bytes: float) -> float:
        """Return how long a collective takes in which one rank sends so much."""
        return self.latency_us + num_bytes / (self.gbytes_per_s * 1e3)


INSIDE_A_HOST = Link(latency_us=8.0, gbytes_per_s=300.0)
"""Accelerators of one host with a fabric of their own."""
BETWEEN_HOSTS = Link(latency_us=25.0, gbytes_per_s=40.0)
"""A 400 Gbit/s network, a port a rank."""
RANKS_PER_HOST = 8
HOST_WAIT_US = 20.0
"""The queue runs empty, and is filled again."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Links of a replica.

    Args:
        inside, between: hosts.
        ranks_per_host: ranks 0 to that less one are on the first host, and so on.
        host_wait_us: what it takes until the host knows a number that the device found.
    """

    inside: Link = INSIDE_A_HOST
    between: Link = BETWEEN_HOSTS
    ranks_per_host: int = RANKS_PER_HOST
    host_wait_us: float = HOST_WAIT_US

    def link(self, mesh: Mesh, axes: Sequence[str]) -> Link:
        """Return the slowest link among ranks that differ in these axes."""
        spans = [axis.stride * axis.size for axis in mesh.axes if axis.name in axes]
        fits = all(self.ranks_per_host % span == 0 for span in spans)
        return self.inside if fits else self.between

    def time_us(self, mesh: Mesh, move: Move, tokens: int) -> float:
        """Return what a move takes in a step of `tokens`."""
        if not move.bytes_per_token:
            return 0.0
        return self.link(mesh, move.axes).time_us(move.bytes_per_token * tokens)

    def pass_time_us(self, num_bytes: float) -> float:
        """Return what handing so many bytes to the next pipeline stage takes."""
        return self.between.time_us(num_bytes)


def local_elements(layout: Layout, mesh: Mesh) -> float:
    """Return the elements on one rank for one token; cut tokens are fractions."""
    count = 1.0
    for dim in layout.dims:
        count *= sum(
            (1.0 if segment.size == TOKENS else segment.size) / mesh.size(segment.axes)
            for segment in dim
        )
    return count


ELEMENT_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}
"""By torch's name of a dtype."""
