"""The chosen policy, as the engine calls it: what it raises never ends the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.policy import Keys
from tokenspeed.errors import EngineError, plugin_code, told
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from tokenspeed.contracts.policy import Arrival, Policy

MAX_KEY = (1 << 63) - 1


class GuardedPolicy:
    """A Policy; `name` is its PLUGIN/NAME. Thread: the engine's only."""

    def __init__(self, policy: Policy, name: str) -> None:
        self._policy = policy
        self.name = name
        self._has_failed_end = False

    def keys(self, arrival: Arrival) -> Keys:
        """Return the policy's keys.

        Raises:
            EngineError: it failed, or they are no three numbers that the scheduler can hold; it
                ends this one request.
        """
        try:
            with plugin_code():
                keys = self._policy.keys(arrival)
        except Exception as error:
            raise EngineError(
                f"policy {self.name} failed for this request: {told(error)}; other requests go on; "
                "report it to its author, or choose another with --policy"
            ) from error
        if not isinstance(keys, Keys) or not all(map(_is_key, keys)) or keys.gap_us < 0:
            raise EngineError(
                f"policy {self.name} returned {repr(keys)[:100]}; Keys of 64-bit integers with a "
                "gap_us of 0 or more are needed; fix the policy, or choose another with --policy"
            )
        return keys

    def turn_ended(self, session: int, now_us: int) -> None:
        """Tell the policy; its first failure is logged."""
        try:
            with plugin_code():
                self._policy.turn_ended(session, now_us)
        except Exception:
            if not self._has_failed_end:
                LOGGER.exception("policy %s failed in turn_ended; serving goes on", self.name)
            self._has_failed_end = True


def _is_key(value: object) -> bool:
    return type(value) is int and -MAX_KEY <= value <= MAX_KEY
