"""A step of several partitions as one message: each segment's own, one after the other.

    int64[N + 1]  partitions, then the bytes of each segment's message, 0: it has nothing to run
    messages      as `PlanEncoder` writes them, each partition with a chain of its own

What goes with the whole step (the extra values) goes with its first segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed.scheduler import PlanDecoder, PlanEncoder
from tokenspeed.scheduler.joined import JoinedPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOTHING = np.zeros(0, dtype=np.int32)


class JoinedEncoder:
    """Writes steps one after another, like a PlanEncoder."""

    def __init__(self, num_partitions: int) -> None:
        self._encoders = [PlanEncoder() for _ in range(num_partitions)]

    def encode(self, plan: JoinedPlan, extra: NDArray[np.int32]) -> bytes:
        """Return the message of a step."""
        parts = []
        for encoder, segment in zip(self._encoders, plan.segments, strict=True):
            if segment is None:
                parts.append(b"")
                continue
            own: Any = segment  # a scheduler's own StepPlan
            parts.append(encoder.encode(own, extra))
            extra = _NOTHING
        head = np.array([len(parts), *map(len, parts)], dtype=np.int64)
        return b"".join((head.tobytes(), *parts))


class JoinedDecoder:
    """Reads them in the same order.

    Args:
        slots_each: slots of one partition.
    """

    def __init__(self, num_partitions: int, *, slots_each: int) -> None:
        self._decoders = [PlanDecoder() for _ in range(num_partitions)]
        self._slots_each = slots_each
        self._num_steps = 0

    def decode(self, message: bytes) -> tuple[JoinedPlan, list[int]]:
        """Return the step, and the values that go with it.

        Raises:
            ValueError: it is damaged, of other partitions, or not the one that follows the last.
        """
        num = len(self._decoders)
        head_bytes = 8 * (num + 1)
        head = np.frombuffer(message[:head_bytes].ljust(head_bytes, b"\0"), dtype=np.int64)
        if head[0] != num or head[1:].min() < 0 or head_bytes + head[1:].sum() != len(message):
            raise ValueError(
                f"a step of {len(message)} bytes says that it has {head[0]} partitions of "
                f"{head[1:].tolist()} bytes, and there are {num}"
            )
        segments: list[Any] = []
        extra: list[int] = []
        first = head_bytes
        for decoder, size in zip(self._decoders, head[1:].tolist(), strict=True):
            segment = None
            if size:
                segment, own = decoder.decode(message[first : first + size])
                extra += own
            segments.append(segment)
            first += size
        self._num_steps += 1
        return JoinedPlan(self._num_steps, segments, slots_each=self._slots_each), extra
