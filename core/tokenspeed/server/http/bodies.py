"""The bodies of the requests that are being answered: a budget of bytes for a process.

A body, and what is made of it, is there until its request has ended. Thread: the event loop's only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import CapacityError

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

MAX_BYTES = 512 << 20
RETRY_S = 2
_KEY = "tokenspeed.body_bytes"
"""Scope entry: what a request has taken."""


class Bodies:
    """Counts the bodies in memory.

    Args:
        max_bytes: of all of them; the only one may have more.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes

    def take(self, scope: MutableMapping[str, Any], num_bytes: int) -> None:
        """Count a part of a body that has come.

        Raises:
            CapacityError: the bodies of others fill the budget.
        """
        own = scope.get(_KEY, 0) + num_bytes
        scope[_KEY] = own
        self.num_bytes += num_bytes
        if self.num_bytes > self._max_bytes and self.num_bytes > own:
            raise CapacityError(
                f"the requests that are being answered hold {self.num_bytes - own} bytes of bodies "
                f"and this one brings {own}, {self._max_bytes} may be there at a time; send it "
                f"again in {RETRY_S} s",
                retry_after_s=RETRY_S,
            )

    def release(self, scope: MutableMapping[str, Any]) -> None:
        """Say that a request has ended, whether it had a body or not."""
        self.num_bytes -= scope.pop(_KEY, 0)
