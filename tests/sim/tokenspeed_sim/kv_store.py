"""Cache blocks kept in memory, by a store that fails as planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed_reference.stores.memory import MemoryStore
from tokenspeed_sdk import Faults
from tokenspeed_sdk.testkit.faulty_store import FaultyStore

if TYPE_CHECKING:
    from tokenspeed_sdk import KVStore


def make_store(*, seed: int, fail_share: float, corrupt_share: float, **options: Any) -> KVStore:
    """Open the store; `options` are the engine's."""
    faults = Faults(seed, fail_share=fail_share, corrupt_share=corrupt_share)
    return FaultyStore(MemoryStore(**options), faults)
