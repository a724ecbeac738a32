"""Which records a store of bounded size drops: those used longest ago."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

K = TypeVar("K")


class Recency(Generic[K]):
    """Sizes of records in the order of their last use, bounded in sum. Thread: its owner's.

    Args:
        capacity_bytes: most bytes of all records.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._sizes: OrderedDict[K, int] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._sizes

    def __iter__(self) -> Iterator[K]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, key: K, num_bytes: int) -> None:
        """Note a record as the last used."""
        self.remove(key)
        self._sizes[key] = num_bytes
        self.used_bytes += num_bytes

    def touch(self, key: K) -> None:
        """Note a use."""
        self._sizes.move_to_end(key)

    def remove(self, key: K) -> None:
        """Forget a record, if it is there."""
        self.used_bytes -= self._sizes.pop(key, 0)

    def make_room(self, num_bytes: int) -> list[K]:
        """Forget the records used longest ago until `num_bytes` more fit; return their keys."""
        dropped = []
        while self._sizes and self.used_bytes + num_bytes > self.capacity_bytes:
            key, size = self._sizes.popitem(last=False)
            self.used_bytes -= size
            dropped.append(key)
        return dropped
